//! A look into safetensors objects while they are written and verified: sound headers, finite numbers.
//!
//! The format (huggingface.co/docs/safetensors): 8 bytes, little-endian, the header's length; the header, a JSON
//! object from tensor name to `dtype`, `shape` and `data_offsets`; the data, without gaps.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::Value;

/// Names ending so are looked into.
pub(super) const SUFFIX: &str = ".safetensors";

/// Headers of real models have kilobytes.
const LARGEST_HEADER: u64 = 16 << 20;

const LENGTH_BYTES: usize = 8;

/// Takes an object piece by piece and holds no more of it than the header.
pub(super) struct Inspector {
    size: u64,
    head: Vec<u8>,
    body: Option<Body>,
    fault: Option<Fault>,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is not a safetensors file.
    Malformed(String),
    /// A number is infinite or none.
    NotFinite {
        /// Its tensor.
        tensor: String,
        /// The first such element of the flattened tensor.
        element: u64,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => f.write_str(why),
            Self::NotFinite { tensor, element } => {
                write!(f, "tensor {tensor} holds numbers that are not finite, the first as element {element}")
            }
        }
    }
}

impl Inspector {
    /// For an object of `size` bytes.
    pub(super) fn new(size: u64) -> Self {
        Self { size, head: Vec::new(), body: None, fault: None }
    }

    /// Takes the next bytes.
    pub(super) fn update(&mut self, mut piece: &[u8]) {
        while self.fault.is_none() && !piece.is_empty() {
            match &mut self.body {
                Some(body) => {
                    self.fault = body.update(piece);
                    return;
                }
                None => self.take_head(&mut piece),
            }
        }
    }

    /// What is wrong with the object, if anything is.
    pub(super) fn finish(self) -> Option<Fault> {
        let cut = || Fault::Malformed("it ends inside its header".to_string());
        self.fault.or_else(|| self.body.is_none().then(cut))
    }

    fn take_head(&mut self, piece: &mut &[u8]) {
        let wanted = match self.head.first_chunk::<LENGTH_BYTES>() {
            None => LENGTH_BYTES as u64,
            Some(length) => LENGTH_BYTES as u64 + u64::from_le_bytes(*length),
        };
        let missing = wanted - self.head.len() as u64;
        let (now, rest) = piece.split_at(missing.min(piece.len() as u64) as usize);
        self.head.extend_from_slice(now);
        *piece = rest;
        if let Some(length) = self.head.first_chunk::<LENGTH_BYTES>() {
            let length = u64::from_le_bytes(*length);
            let most = LARGEST_HEADER.min(self.size.saturating_sub(LENGTH_BYTES as u64));
            if length > most {
                let why = format!("it claims a header of {length} bytes, {most} are possible");
                self.fault = Some(Fault::Malformed(why));
            } else if self.head.len() as u64 == LENGTH_BYTES as u64 + length {
                self.open_body();
            }
        }
    }

    fn open_body(&mut self) {
        match regions(&self.head[LENGTH_BYTES..], self.size - self.head.len() as u64) {
            Ok(regions) => self.body = Some(Body { regions, at: 0, current: 0, partial: Vec::new() }),
            Err(why) => self.fault = Some(Fault::Malformed(why)),
        }
    }
}

/// The data, tensor after tensor.
struct Body {
    regions: Vec<Region>,
    at: u64,
    current: usize,
    /// The first bytes of a number that the pieces cut in two.
    partial: Vec<u8>,
}

struct Region {
    name: String,
    kind: Kind,
    first: u64,
    end: u64,
}

impl Body {
    fn update(&mut self, mut piece: &[u8]) -> Option<Fault> {
        while let Some(region) = self.regions.get(self.current)
            && !piece.is_empty()
        {
            let (now, rest) = piece.split_at((region.end - self.at).min(piece.len() as u64) as usize);
            let started = self.partial.len() as u64;
            if let Some(number) = region.kind.first_bad_number(&mut self.partial, now) {
                let element = (self.at - started - region.first) / region.kind.bytes() as u64 + number;
                return Some(Fault::NotFinite { tensor: region.name.clone(), element });
            }
            piece = rest;
            self.at += now.len() as u64;
            self.current += usize::from(self.at == region.end);
        }
        None
    }
}

/// How a tensor's numbers are stored, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Floating point of so many bytes; a number with all these exponent bits set is infinite or none.
    Float { bytes: usize, exponent: u64 },
    /// Anything else, of so many bytes: every pattern is a number.
    Other { bytes: usize },
}

impl Kind {
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

    /// The first number of `piece`, or of the one that began with `partial`, that is infinite or none, counted from there.
    fn first_bad_number(self, partial: &mut Vec<u8>, mut piece: &[u8]) -> Option<u64> {
        let Self::Float { bytes, exponent } = self else { return None };
        let mut before = 0;
        if !partial.is_empty() {
            let (now, rest) = piece.split_at((bytes - partial.len()).min(piece.len()));
            partial.extend_from_slice(now);
            piece = rest;
            if partial.len() < bytes {
                return None;
            }
            if any_bad(bytes, exponent, partial) {
                return Some(0);
            }
            partial.clear();
            before = 1;
        }
        let (whole, cut) = piece.split_at(piece.len() - piece.len() % bytes);
        partial.extend_from_slice(cut);
        let bad = any_bad(bytes, exponent, whole);
        let place = || whole.chunks(bytes).position(|number| any_bad(bytes, exponent, number)).unwrap_or(0);
        bad.then(|| before + place() as u64)
    }
}

/// Whether any of the `width`-byte numbers in `bytes` has all bits of `exponent` set. Without a branch in the
/// loops, so that the compiler makes vector instructions of them.
fn any_bad(width: usize, exponent: u64, bytes: &[u8]) -> bool {
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
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// A JSON object with all its members, doubles too: a map would hide them.
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

/// The tensors of a header in the order of their data, of which there are `data` bytes.
fn regions(header: &[u8], data: u64) -> Result<Vec<Region>, String> {
    let members: Members = serde_json::from_slice(header).map_err(|fault| format!("its header is none: {fault}"))?;
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for (name, value) in members.0 {
        if !names.insert(name.clone()) {
            return Err(format!("tensor {name} is named twice"));
        }
        if name != "__metadata__" {
            let tensor = Tensor::deserialize(value).map_err(|fault| format!("tensor {name}: {fault}"))?;
            tensors.push((name, tensor));
        }
    }
    tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
    in_order(tensors, data)
}

fn in_order(tensors: Vec<(String, Tensor)>, data: u64) -> Result<Vec<Region>, String> {
    let mut end = 0;
    let mut regions = Vec::new();
    for (name, tensor) in tensors {
        let kind =
            Kind::of(&tensor.dtype).ok_or_else(|| format!("tensor {name} has the unknown type {}", tensor.dtype))?;
        let elements = tensor.shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size));
        let bytes = elements.and_then(|elements| elements.checked_mul(kind.bytes() as u64));
        let (first, last) = tensor.data_offsets;
        if first != end || bytes != last.checked_sub(first) || last > data {
            return Err(format!("tensor {name} lies at {first}..{last} of {data} bytes of data, which cannot be"));
        }
        end = last;
        if last > first {
            regions.push(Region { name, kind, first, end });
        }
    }
    if end == data { Ok(regions) } else { Err(format!("its tensors have {end} bytes, its data {data}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn inspect(bytes: &[u8], piece: usize) -> Option<String> {
        let mut inspector = Inspector::new(bytes.len() as u64);
        bytes.chunks(piece).for_each(|piece| inspector.update(piece));
        inspector.finish().map(|fault| fault.to_string())
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
    fn sound_files_pass_however_they_are_cut() {
        for piece in [1, 2, 3, 5, 7, 64, 1000] {
            assert_eq!(inspect(&two(2.0), piece), None);
        }
        assert_eq!(inspect(&file("{}", &[]), 3), None);
    }

    #[test]
    fn numbers_that_are_not_finite_are_found_however_they_are_cut() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for piece in [1, 2, 3, 5, 7, 64, 1000] {
                let fault = inspect(&two(bad), piece).unwrap();
                assert_eq!(fault, "tensor b holds numbers that are not finite, the first as element 1", "{piece}");
            }
        }
        let half = |dtype: &str, bits: u16| {
            inspect(&file(&format!("{{\"x\":{}}}", tensor(dtype, "[1]", "[0,2]")), &bits.to_le_bytes()), 9)
        };
        assert!(half("BF16", 0xff80).is_some() && half("F16", 0x7c01).is_some());
        assert!(half("BF16", 0x7f7f).is_none() && half("F16", 0x7bff).is_none() && half("I16", 0x7fff).is_none());
    }

    #[test]
    fn impossible_headers_are_refused_without_room_for_what_they_claim() {
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
