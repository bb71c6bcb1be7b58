//! Encoding of values on the wire as little-endian f32 or bf16, and addition to encoded values. The compiler vectorizes
//! the loops.

/// Number format of gradients on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WireFormat {
    /// f32, 4 bytes per value.
    #[default]
    F32,
    /// bf16, rounded to nearest, ties to even: 2 bytes per value, 8 significant bits.
    ///
    /// Over MPI, values are rounded only when they are sent. The first rank of the ring rounds its values. Each further
    /// rank adds its unrounded f32 values to the received values in f32 and rounds the sum. All ranks get the rounded
    /// final sum. A sum over n ranks is therefore rounded n times. Each rounding changes the partial sum by at most
    /// 2^-8 of its value. Infinities and NaN are preserved. Buckets that use recursive doubling (up to 32 KiB for each
    /// 8 ranks) are sent as f32.
    Bf16,
}

impl WireFormat {
    /// Bytes per value.
    pub fn bytes_per_value(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Encodes `values` into `bytes`.
    pub fn encode(self, bytes: &mut [u8], values: &[f32]) {
        match self {
            Self::F32 => encode_each::<4>(bytes, values, |_, value| value.to_le_bytes()),
            Self::Bf16 => encode_each::<2>(bytes, values, |_, value| to_bf16(value)),
        }
    }

    /// Adds `values` to the encoded values in `bytes`. Sums in f32.
    pub fn accumulate(self, bytes: &mut [u8], values: &[f32]) {
        match self {
            Self::F32 => encode_each::<4>(bytes, values, |sum, value| (f32::from_le_bytes(sum) + value).to_le_bytes()),
            Self::Bf16 => encode_each::<2>(bytes, values, |sum, value| to_bf16(from_bf16(sum) + value)),
        }
    }

    /// Decodes `bytes` into `values`.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => decode_each::<4>(values, bytes, f32::from_le_bytes),
            Self::Bf16 => decode_each::<2>(values, bytes, from_bf16),
        }
    }
}

fn encode_each<const WIDTH: usize>(bytes: &mut [u8], values: &[f32], change: impl Fn([u8; WIDTH], f32) -> [u8; WIDTH]) {
    bytes.as_chunks_mut::<WIDTH>().0.iter_mut().zip(values).for_each(|(bytes, &value)| *bytes = change(*bytes, value));
}

fn decode_each<const WIDTH: usize>(values: &mut [f32], bytes: &[u8], number: impl Fn([u8; WIDTH]) -> f32) {
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, &bytes)| *value = number(bytes));
}

/// Rounds to the nearest bf16 value, ties to even. NaN stays NaN.
fn to_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let nearest = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    (if value.is_nan() { quiet } else { nearest }).to_le_bytes()
}

fn from_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_bf16(value: f32) -> f32 {
        from_bf16(to_bf16(value))
    }

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        let step = 1.0 / 128.0;
        assert_eq!(through_bf16(1.0), 1.0);
        assert_eq!(through_bf16(1.0 + 0.49 * step), 1.0);
        assert_eq!(through_bf16(1.0 + 0.51 * step), 1.0 + step);
        assert_eq!(through_bf16(1.0 + 0.5 * step), 1.0, "a tie rounds down to even");
        assert_eq!(through_bf16(1.0 + 1.5 * step), 1.0 + 2.0 * step, "a tie rounds up to even");
        assert_eq!(through_bf16(-0.0).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn non_finite_values_are_preserved() {
        assert_eq!(through_bf16(f32::INFINITY), f32::INFINITY);
        assert_eq!(through_bf16(f32::NEG_INFINITY), f32::NEG_INFINITY);
        for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(through_bf16(nan).is_nan());
        }
        assert_eq!(through_bf16(f32::MAX), f32::INFINITY, "overflow of bf16");
    }

    #[test]
    fn encoded_values_are_summed_in_f32() {
        for (wire, expected) in [(WireFormat::F32, [1.5f32, 258.5]), (WireFormat::Bf16, [1.5, 258.0])] {
            let mut bytes = vec![0; 2 * wire.bytes_per_value()];
            wire.encode(&mut bytes, &[1.0, 256.0]);
            wire.accumulate(&mut bytes, &[0.5, 2.5]);
            let mut values = [0.0; 2];
            wire.decode(&bytes, &mut values);
            assert_eq!(values, expected, "{wire:?}");
        }
    }
}
