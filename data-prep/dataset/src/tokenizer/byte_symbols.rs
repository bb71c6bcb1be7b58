//! Symbols of byte-level BPE: each byte is one printable character, as in GPT-2.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Symbol of the space, with which a word of a text starts.
pub const SPACE: char = 'Ġ';

/// Symbols of all bytes, in byte order. Printable characters of Latin-1 stand for themselves. All other bytes have the
/// characters from U+0100, in byte order.
pub static SYMBOLS: LazyLock<[char; 256]> = LazyLock::new(|| {
    let mut other = 0x100..;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte as u8),
        _ => other.next().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER),
    })
});

static BYTES: LazyLock<HashMap<char, u8>> = LazyLock::new(|| SYMBOLS.iter().copied().zip(0..=u8::MAX).collect());

/// Byte of a symbol.
pub fn byte(symbol: char) -> Option<u8> {
    BYTES.get(&symbol).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_has_a_symbol() {
        let symbols = &*SYMBOLS;
        assert_eq!((symbols[usize::from(b' ')], symbols[usize::from(b'\n')], symbols[0xad]), (SPACE, 'Ċ', 'Ń'));
        assert_eq!((symbols[usize::from(b'a')], symbols[0xe9]), ('a', 'é'));
        assert!((0..=u8::MAX).all(|value| byte(symbols[usize::from(value)]) == Some(value)));
        assert_eq!(byte('x'), Some(b'x'));
        assert_eq!(byte('▁'), None);
    }
}
