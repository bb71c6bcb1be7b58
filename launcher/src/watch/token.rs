//! Access token of the page.

use std::fmt;

use subtle::ConstantTimeEq;

/// Bytes of a token: 256 bits.
const BYTES: usize = 32;

/// Random secret, 64 hexadecimal digits. `Debug` does not show it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Draws a token from the operating system's generator.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; BYTES];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// The digits, for the URL that the user opens.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if `presented` is the token. The time depends on its length only.
    pub fn matches(&self, presented: &str) -> bool {
        self.0.as_bytes().ct_eq(presented.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_matches() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        let text = token.as_str();
        assert_eq!(text.len(), 64);
        assert!(token.matches(text) && !token.matches(other.as_str()));
        assert!(!token.matches(&text[..63]) && !token.matches("") && !token.matches(&format!("{text}0")));
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}
