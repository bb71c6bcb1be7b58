//! The columns of a shard, and how the Parquet library is told to write them.

use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::{Type, TypePtr};

/// Column numbers, in the order of the schema.
pub const INPUT_IDS: usize = 0;
pub const LENGTH: usize = 1;
pub const SEGMENT_B_START: usize = 2;
pub const PAIR_LABEL: usize = 3;
/// Column names.
pub const NAMES: [&str; 4] = ["input_ids", "length", "segment_b_start", "pair_label"];

/// Compression level: higher ones gain less than 2 % on token ids.
const ZSTD_LEVEL: i32 = 3;

/// `input_ids: list<uint16|uint32>`, `length: uint16`, `segment_b_start: uint16`, `pair_label: uint8?`.
pub fn schema(vocabulary_size: usize) -> Result<TypePtr, ParquetError> {
    let id_bits = if vocabulary_size <= 1 << 16 { 16 } else { 32 };
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![unsigned("element", id_bits, Repetition::REQUIRED)?])
        .build()?;
    let input_ids = Type::group_type_builder("input_ids")
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)])
        .build()?;
    let fields = vec![
        Arc::new(input_ids),
        unsigned("length", 16, Repetition::REQUIRED)?,
        unsigned("segment_b_start", 16, Repetition::REQUIRED)?,
        unsigned("pair_label", 8, Repetition::OPTIONAL)?,
    ];
    Ok(Arc::new(Type::group_type_builder("sample").with_fields(fields).build()?))
}

fn unsigned(name: &str, bits: i8, repetition: Repetition) -> Result<TypePtr, ParquetError> {
    let field = Type::primitive_type_builder(name, Physical::INT32)
        .with_repetition(repetition)
        .with_logical_type(Some(LogicalType::integer(bits, false)))
        .build()?;
    Ok(Arc::new(field))
}

/// Nothing here depends on the time, the machine or the library's version, so that equal rows give equal bytes.
pub fn properties() -> Result<WriterProperties, ParquetError> {
    Ok(WriterProperties::builder()
        .set_created_by("lambert".to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .build())
}
