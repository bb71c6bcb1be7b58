//! Incremental validation of safetensors objects. The header must be valid, and all elements must be finite.
//!
//! An object in this format (huggingface.co/docs/safetensors) has three parts. The first is the length of the header, 8
//! bytes in little-endian order. The second is the header, a JSON object that maps each tensor name to `dtype`, `shape`
//! and `data_offsets`. The third is the data of the tensors, without gaps.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

/// File name suffix of the objects that are validated.
pub(super) const SUFFIX: &str = ".safetensors";

/// Maximum size of the header of a safetensors file, bytes. Headers of real models have a few kilobytes.
pub const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Size of the number before the header of a safetensors file, bytes. It is the length of the header.
pub const HEADER_LENGTH_BYTES: usize = 8;

/// Streaming validator. It buffers only the header.
pub(super) struct TensorValidator {
    size: u64,
    head: Vec<u8>,
    body: Option<DataValidator>,
    error: Option<TensorError>,
}

/// Validation failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TensorError {
    /// Not a valid safetensors file.
    Malformed(String),
    /// An element is NaN or infinite.
    NotFinite {
        /// Tensor name.
        tensor: String,
        /// First such element, as an index into the flattened tensor.
        element: u64,
    },
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => f.write_str(why),
            Self::NotFinite { tensor, element } => {
                write!(f, "tensor {tensor} has elements that are not finite, the first at index {element}")
            }
        }
    }
}

impl TensorValidator {
    /// Creates a validator for an object of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, head: Vec::new(), body: None, error: None }
    }

    /// Validates the next bytes.
    pub(super) fn update(&mut self, mut piece: &[u8]) {
        while self.error.is_none() && !piece.is_empty() {
            match &mut self.body {
                Some(body) => {
                    self.error = body.update(piece);
                    return;
                }
                None => self.take_header(&mut piece),
            }
        }
    }

    /// Returns the first failure, if any.
    pub(super) fn finish(self) -> Option<TensorError> {
        let cut = || TensorError::Malformed("it ends inside its header".to_string());
        self.error.or_else(|| self.body.is_none().then(cut))
    }

    fn take_header(&mut self, piece: &mut &[u8]) {
        let needed = match self.head.first_chunk::<HEADER_LENGTH_BYTES>() {
            None => HEADER_LENGTH_BYTES as u64,
            Some(length) => HEADER_LENGTH_BYTES as u64 + u64::from_le_bytes(*length),
        };
        let missing = needed - self.head.len() as u64;
        let (now, rest) = piece.split_at(missing.min(piece.len() as u64) as usize);
        self.head.extend_from_slice(now);
        *piece = rest;
        if let Some(length) = self.head.first_chunk::<HEADER_LENGTH_BYTES>() {
            let length = u64::from_le_bytes(*length);
            let most = MAX_HEADER_BYTES.min(self.size.saturating_sub(HEADER_LENGTH_BYTES as u64));
            if length > most {
                let why = format!("it claims a header of {length} bytes, at most {most} are valid");
                self.error = Some(TensorError::Malformed(why));
            } else if self.head.len() as u64 == HEADER_LENGTH_BYTES as u64 + length {
                self.open_body();
            }
        }
    }

    fn open_body(&mut self) {
        match regions(&self.head[HEADER_LENGTH_BYTES..], self.size - self.head.len() as u64) {
            Ok(regions) => self.body = Some(DataValidator { regions, at: 0, current: 0, partial: Vec::new() }),
            Err(why) => self.error = Some(TensorError::Malformed(why)),
        }
    }
}

/// Validation state of the data section.
struct DataValidator {
    regions: Vec<TensorRegion>,
    at: u64,
    current: usize,
    /// The first bytes of an element that is split across pieces.
    partial: Vec<u8>,
}

struct TensorRegion {
    name: String,
    kind: ElementKind,
    first: u64,
    end: u64,
}

impl DataValidator {
    fn update(&mut self, mut piece: &[u8]) -> Option<TensorError> {
        while let Some(region) = self.regions.get(self.current)
            && !piece.is_empty()
        {
            let (now, rest) = piece.split_at((region.end - self.at).min(piece.len() as u64) as usize);
            let started = self.partial.len() as u64;
            if let Some(number) = region.kind.first_not_finite(&mut self.partial, now) {
                let element = (self.at - started - region.first) / region.kind.bytes() as u64 + number;
                return Some(TensorError::NotFinite { tensor: region.name.clone(), element });
            }
            piece = rest;
            self.at += now.len() as u64;
            self.current += usize::from(self.at == region.end);
        }
        None
    }
}

/// Storage format of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ElementKind {
    /// Floating point. An element with all exponent bits set is NaN or infinite.
    Float { bytes: usize, exponent: u64 },
    /// Any other type: every bit pattern is valid.
    Other { bytes: usize },
}

impl ElementKind {
    fn of(dtype: &str) -> Option<Self> {
        Some(match dtype {
            "F64" => Self::Float { bytes: 8, exponent: 0x7ff0_0000_0000_0000 },
            "F32" => Self::Float { bytes: 4, exponent: 0x7f80_0000 },
            "BF16" => Self::Float { bytes: 2, exponent: 0x7f80 },
            "F16" => Self::Float { bytes: 2, exponent: 0x7c00 },
            "I64" | "U64" => Self::Other { bytes: 8 },
            "I32" | "U32" => Self::Other { bytes: 4 },
            "I16" | "U16" => Self::Other { bytes: 2 },
            "I8" | "U8" | "BOOL" => Self::Other { bytes: 1 },
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Self::Float { bytes, .. } | Self::Other { bytes } => bytes,
        }
    }

    /// Returns the index of the first NaN or infinite element in the concatenation of `partial` and `piece`. Leaves the
    /// bytes of an incomplete last element in `partial`.
    fn first_not_finite(self, partial: &mut Vec<u8>, mut piece: &[u8]) -> Option<u64> {
        let Self::Float { bytes, exponent } = self else { return None };
        let mut before = 0;
        if !partial.is_empty() {
            let (now, rest) = piece.split_at((bytes - partial.len()).min(piece.len()));
            partial.extend_from_slice(now);
            piece = rest;
            if partial.len() < bytes {
                return None;
            }
            if any_not_finite(bytes, exponent, partial) {
                return Some(0);
            }
            partial.clear();
            before = 1;
        }
        let (whole, cut) = piece.split_at(piece.len() - piece.len() % bytes);
        partial.extend_from_slice(cut);
        let bad = any_not_finite(bytes, exponent, whole);
        let position = || whole.chunks(bytes).position(|number| any_not_finite(bytes, exponent, number)).unwrap_or(0);
        bad.then(|| before + position() as u64)
    }
}

/// True if any `width`-byte element of `bytes` has all bits of `exponent` set. The loops have no branches, so the
/// compiler vectorizes them.
fn any_not_finite(width: usize, exponent: u64, bytes: &[u8]) -> bool {
    match width {
        2 => bytes
            .as_chunks()
            .0
            .iter()
            .fold(false, |bad, number| bad | (u16::from_le_bytes(*number) & exponent as u16 == exponent as u16)),
        4 => bytes
            .as_chunks()
            .0
            .iter()
            .fold(false, |bad, number| bad | (u32::from_le_bytes(*number) & exponent as u32 == exponent as u32)),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .fold(false, |bad, number| bad | (u64::from_le_bytes(*number) & exponent == exponent)),
    }
}

#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// All members of a JSON object, including those with duplicate keys. A map would keep only one member per key.
struct Members(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Parses a header and returns the tensors in the order of their data. The data section has `data` bytes.
fn regions(header: &[u8], data: u64) -> Result<Vec<TensorRegion>, String> {
    let members: Members = serde_json::from_slice(header).map_err(|error| format!("its header is invalid: {error}"))?;
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for (name, value) in members.0 {
        if !names.insert(name.clone()) {
            return Err(format!("tensor {name} is listed twice"));
        }
        if name != "__metadata__" {
            let tensor = TensorHeader::deserialize(value).map_err(|error| format!("tensor {name}: {error}"))?;
            tensors.push((name, tensor));
        }
    }
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    in_order(tensors, data)
}

fn in_order(tensors: Vec<(String, TensorHeader)>, data: u64) -> Result<Vec<TensorRegion>, String> {
    let mut end = 0;
    let mut regions = Vec::new();
    for (name, tensor) in tensors {
        let kind = ElementKind::of(&tensor.dtype)
            .ok_or_else(|| format!("tensor {name} has the unsupported type {}", tensor.dtype))?;
        let elements = tensor.shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        let bytes = elements.and_then(|elements| elements.checked_mul(kind.bytes() as u64));
        let (first, last) = tensor.data_offsets;
        if first != end || bytes != last.checked_sub(first) || last > data {
            return Err(format!("tensor {name} has invalid data offsets {first}..{last} (data has {data} bytes)"));
        }
        end = last;
        if last > first {
            regions.push(TensorRegion { name, kind, first, end });
        }
    }
    if end == data { Ok(regions) } else { Err(format!("its tensors have {end} bytes, its data section {data}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn inspect(bytes: &[u8], piece: usize) -> Option<String> {
        let mut inspector = TensorValidator::new(bytes.len() as u64);
        bytes.chunks(piece).for_each(|piece| inspector.update(piece));
        inspector.finish().map(|error| error.to_string())
    }

    fn tensor(dtype: &str, shape: &str, offsets: &str) -> String {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    }

    fn two(second: f32) -> Vec<u8> {
        let a = tensor("I16", "[1]", "[0,2]");
        let b = tensor("F32", "[3]", "[2,14]");
        let numbers = [1.0, second, f32::MAX].map(f32::to_le_bytes).concat();
        file(
            &format!(r#"{{"__metadata__":{{"format":"pt"}},"b":{b},"a":{a}}}"#),
            &[&[0xff, 0x7f][..], &numbers].concat(),
        )
    }

    #[test]
    fn valid_files_pass_for_any_piece_size() {
        for piece in [1, 2, 3, 5, 7, 64, 1000] {
            assert_eq!(inspect(&two(2.0), piece), None);
        }
        assert_eq!(inspect(&file("{}", &[]), 3), None);
    }

    #[test]
    fn elements_that_are_not_finite_are_found_for_any_piece_size() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for piece in [1, 2, 3, 5, 7, 64, 1000] {
                let error = inspect(&two(bad), piece).unwrap();
                assert_eq!(error, "tensor b has elements that are not finite, the first at index 1", "{piece}");
            }
        }
        let half = |dtype: &str, bits: u16| {
            inspect(&file(&format!("{{\"x\":{}}}", tensor(dtype, "[1]", "[0,2]")), &bits.to_le_bytes()), 9)
        };
        assert!(half("BF16", 0xff80).is_some() && half("F16", 0x7c01).is_some());
        assert!(half("BF16", 0x7f7f).is_none() && half("F16", 0x7bff).is_none() && half("I16", 0x7fff).is_none());
    }

    #[test]
    fn invalid_headers_are_rejected_without_allocating_their_claimed_size() {
        let one = |header: String| inspect(&file(&header, &[0; 8]), 4);
        let claims = [1u64 << 50, u64::MAX, 17 << 20].map(|length| [&length.to_le_bytes()[..], &[b'{'; 40]].concat());
        for claim in claims {
            assert!(inspect(&claim, 7).unwrap().contains("claims a header"));
        }
        assert!(one("not json".into()).unwrap().contains("header"));
        assert!(
            one(format!("{{\"x\":{},\"x\":{}}}", tensor("F32", "[2]", "[0,8]"), tensor("I32", "[2]", "[0,8]")))
                .unwrap()
                .contains("twice")
        );
        for (shape, offsets) in [
            ("[1125899906842624]", "[0,4503599627370496]"),
            ("[18446744073709551615,18446744073709551615]", "[0,8]"),
            ("[1]", "[4,8]"),
            ("[1]", "[0,4]"),
            ("[2]", "[8,0]"),
            ("[3]", "[0,8]"),
        ] {
            assert!(one(format!("{{\"x\":{}}}", tensor("F32", shape, offsets))).is_some(), "{shape} {offsets}");
        }
        assert!(one(format!("{{\"x\":{}}}", tensor("Q4", "[2]", "[0,8]"))).unwrap().contains("type"));
        assert!(inspect(&two(1.0)[..20], 7).is_some() && inspect(&[], 1).is_some() && inspect(&[1, 0], 1).is_some());
    }
}
