//! Values as they travel: little-endian f32 or bf16 in byte buffers, and the sums over them. Plain loops that vectorize.

/// The format that gradients travel in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wire {
    /// As they are, 4 bytes a value.
    #[default]
    F32,
    /// The upper half of each f32, rounded to nearest, ties to even: 2 bytes a value, 8 significant bits.
    ///
    /// A value is rounded when it leaves a rank, and only then: the first rank of the ring rounds its own, every further rank adds
    /// its own unrounded f32 to what it received, in f32, and rounds the sum. The last rounding makes the result, which is a
    /// bf16 number on all ranks, also on the rank that made it. So a sum over n ranks is rounded n times (twice over two), each
    /// time by at most 2^-8 of the partial sum. Infinities and NaN stay what they are. Buckets of up to 32 KiB travel as f32.
    Bf16,
}

impl Wire {
    /// Bytes that a value takes.
    pub fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    /// Writes `values` into `bytes`.
    pub fn load(self, bytes: &mut [u8], values: &[f32]) {
        match self {
            Self::F32 => each::<4>(bytes, values, |_, value| value.to_le_bytes()),
            Self::Bf16 => each::<2>(bytes, values, |_, value| rounded(value)),
        }
    }

    /// Adds `values` to those in `bytes`.
    pub fn add(self, bytes: &mut [u8], values: &[f32]) {
        match self {
            Self::F32 => each::<4>(bytes, values, |other, value| (f32::from_le_bytes(other) + value).to_le_bytes()),
            Self::Bf16 => each::<2>(bytes, values, |other, value| rounded(widened(other) + value)),
        }
    }

    /// Replaces `values` by those in `bytes`.
    pub fn keep(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::F32 => copy::<4>(values, bytes, f32::from_le_bytes),
            Self::Bf16 => copy::<2>(values, bytes, widened),
        }
    }
}

fn each<const WIDTH: usize>(bytes: &mut [u8], values: &[f32], change: impl Fn([u8; WIDTH], f32) -> [u8; WIDTH]) {
    bytes.as_chunks_mut::<WIDTH>().0.iter_mut().zip(values).for_each(|(bytes, &value)| *bytes = change(*bytes, value));
}

fn copy<const WIDTH: usize>(values: &mut [f32], bytes: &[u8], number: impl Fn([u8; WIDTH]) -> f32) {
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, &bytes)| *value = number(bytes));
}

/// To bf16, to nearest, ties to even. A NaN stays one.
fn rounded(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let nearest = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    (if value.is_nan() { quiet } else { nearest }).to_le_bytes()
}

fn widened(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_bf16(value: f32) -> f32 {
        widened(rounded(value))
    }

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        let step = 1.0 / 128.0;
        assert_eq!(through_bf16(1.0), 1.0);
        assert_eq!(through_bf16(1.0 + 0.49 * step), 1.0);
        assert_eq!(through_bf16(1.0 + 0.51 * step), 1.0 + step);
        assert_eq!(through_bf16(1.0 + 0.5 * step), 1.0, "a tie goes to the even one below");
        assert_eq!(through_bf16(1.0 + 1.5 * step), 1.0 + 2.0 * step, "a tie goes to the even one above");
        assert_eq!(through_bf16(-0.0).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        assert_eq!(through_bf16(f32::INFINITY), f32::INFINITY);
        assert_eq!(through_bf16(f32::NEG_INFINITY), f32::NEG_INFINITY);
        for nan in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(through_bf16(nan).is_nan());
        }
        assert_eq!(through_bf16(f32::MAX), f32::INFINITY, "beyond bf16's greatest number");
    }

    #[test]
    fn sums_are_f32_sums_of_what_came_and_what_is_here() {
        for (wire, expected) in [(Wire::F32, [1.5f32, 258.5]), (Wire::Bf16, [1.5, 258.0])] {
            let mut bytes = vec![0; 2 * wire.width()];
            wire.load(&mut bytes, &[1.0, 256.0]);
            wire.add(&mut bytes, &[0.5, 2.5]);
            let mut values = [0.0; 2];
            wire.keep(&bytes, &mut values);
            assert_eq!(values, expected, "{wire:?}");
        }
    }
}
