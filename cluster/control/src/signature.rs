//! Signatures of reports and answers: HMAC-SHA256 with the secret of the attempt, which itself is never sent.
//!
//! A signature covers the protocol's version, the attempt, the direction, the rank, the report's sequence number and the
//! SHA-256 of the body. A rank numbers its reports from 1 and never reuses a number. The coordinator refuses a number
//! that is not above the last one it accepted, and an answer carries the number of its report: so neither can be replayed.

use std::fmt::{Debug, Formatter};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::PROTOCOL;

/// Begins the `Authorization` header of a report: `Lambert-HMAC RANK SEQUENCE BODY-SHA256 SIGNATURE`, the last two in
/// hexadecimal.
const SCHEME: &[u8] = b"Lambert-HMAC ";

type Sha = [u8; 32];

/// Signs and verifies the messages of one attempt.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

/// Shows nothing of the secret.
impl Debug for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Which way a message goes; no signature of one direction is valid in the other.
#[derive(Clone, Copy)]
enum Direction {
    Report = 1,
    Answer = 2,
}

/// The head of a report with a valid signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedHead {
    /// The rank that signed.
    pub rank: usize,
    /// The report's sequence number.
    pub sequence: u64,
    body: Sha,
}

impl SignedHead {
    /// Whether `body` is the one that was signed.
    pub fn covers(&self, body: &[u8]) -> bool {
        self.body == sha256(body)
    }
}

impl Key {
    /// The key of attempt `attempt`, from its secret.
    pub fn new(secret: &str, attempt: u32) -> Self {
        let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(b"lambert control ");
        mac.update(PROTOCOL.as_bytes());
        mac.update(&attempt.to_le_bytes());
        Self(mac)
    }

    fn mac(&self, direction: Direction, (rank, sequence): (usize, u64), body: &Sha) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(&[direction as u8]);
        mac.update(&(rank as u64).to_le_bytes());
        mac.update(&sequence.to_le_bytes());
        mac.update(body);
        mac
    }

    /// The `Authorization` header of a report.
    pub fn sign_report(&self, rank: usize, sequence: u64, body: &[u8]) -> String {
        let body = sha256(body);
        let signature: Sha = self.mac(Direction::Report, (rank, sequence), &body).finalize().into_bytes().into();
        format!("Lambert-HMAC {rank} {sequence} {} {}", hex(&body), hex(&signature))
    }

    /// Verifies the `Authorization` header of a report, in constant time. The body is still to be compared
    /// ([`SignedHead::covers`]), and the sequence number with the last one.
    pub fn verify_report(&self, header: &[u8]) -> Option<SignedHead> {
        let fields = std::str::from_utf8(header.strip_prefix(SCHEME)?).ok()?;
        let mut fields = fields.split(' ');
        let (rank, sequence) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (body, signature) = (bytes(fields.next()?)?, bytes(fields.next()?)?);
        let mac = self.mac(Direction::Report, (rank, sequence), &body);
        (fields.next().is_none() && mac.verify(&signature.into()).is_ok()).then_some(SignedHead {
            rank,
            sequence,
            body,
        })
    }

    /// The signature of the answer to report `sequence` of a rank.
    pub fn sign_answer(&self, rank: usize, sequence: u64, body: &[u8]) -> String {
        let mac = self.mac(Direction::Answer, (rank, sequence), &sha256(body));
        hex(&mac.finalize().into_bytes().into())
    }

    /// Whether `signature` is that of the answer `body` to report `sequence` of a rank; compared in constant time.
    pub fn verify_answer(&self, rank: usize, sequence: u64, body: &[u8], signature: &str) -> bool {
        let mac = self.mac(Direction::Answer, (rank, sequence), &sha256(body));
        bytes(signature).is_some_and(|signature| mac.verify(&signature.into()).is_ok())
    }
}

/// A rank's end: numbers and signs its reports, and verifies their answers.
#[derive(Debug)]
pub struct Signer {
    key: Key,
    rank: usize,
    sequence: u64,
}

impl Signer {
    /// For the reports of `rank`, of which none was sent.
    pub fn new(key: Key, rank: usize) -> Self {
        Self { key, rank, sequence: 0 }
    }

    /// The `Authorization` header of the next report.
    pub fn sign(&mut self, body: &[u8]) -> String {
        self.sequence += 1;
        self.key.sign_report(self.rank, self.sequence, body)
    }

    /// Whether `body` is the coordinator's answer to the last report that was signed.
    pub fn verifies(&self, body: &[u8], signature: &str) -> bool {
        self.key.verify_answer(self.rank, self.sequence, body, signature)
    }
}

fn sha256(bytes: &[u8]) -> Sha {
    Sha256::digest(bytes).into()
}

fn hex(bytes: &Sha) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Thirty-two bytes in lower-case hexadecimal.
fn bytes(hex: &str) -> Option<Sha> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let pair = |pair: &[u8]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let bytes: Vec<u8> =
        hex.as_bytes().chunks(2).map(|two| (two.len() == 2).then(|| pair(two))?).collect::<Option<_>>()?;
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = br#"{"rank":3,"pid":7,"host":"h","step":1,"phase":"step","in_phase":0.5}"#;

    fn key() -> Key {
        Key::new("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 2)
    }

    /// Computed by Python's hmac and hashlib: programs of the same protocol understand each other.
    #[test]
    fn signatures_are_hmac_sha256() {
        assert_eq!(
            key().sign_report(3, 17, BODY),
            "Lambert-HMAC 3 17 9a2ce3343cfd8f3ea108290c92a9394a5d4fca18c4d89fe2c8e42689cfdaf52e a898a14c7ae1ff73ab804a830c8e101e7ea2df0484bd56955cb8f52930a53e83"
        );
        assert_eq!(key().sign_answer(3, 17, BODY), "4ae99b9aaa504ef1e2ad3e1b1e3ff3126ebe8ee93ade7a0affd88b09966ca5d5");
    }

    #[test]
    fn what_was_signed_is_verified() {
        let key = key();
        let head = key.verify_report(key.sign_report(3, 17, BODY).as_bytes()).unwrap();
        assert_eq!((head.rank, head.sequence, head.covers(BODY)), (3, 17, true));
        assert!(key.verify_answer(3, 17, BODY, &key.sign_answer(3, 17, BODY)));
        let mut signer = Signer::new(key.clone(), 3);
        for sequence in [1, 2] {
            let head = key.verify_report(signer.sign(BODY).as_bytes()).unwrap();
            assert_eq!((head.rank, head.sequence), (3, sequence));
            assert!(signer.verifies(b"{}", &key.sign_answer(3, sequence, b"{}")));
            assert!(!signer.verifies(b"{}", &key.sign_answer(3, sequence + 1, b"{}")), "the answer to another report");
            assert!(!signer.verifies(b"{}", &key.sign_answer(2, sequence, b"{}")), "the answer to another rank");
        }
    }

    /// Every byte of a message, changed to every other value; every truncation; every other attempt, rank, number, direction.
    #[test]
    fn whatever_was_not_signed_is_refused() {
        let key = key();
        let (report, answer) = (key.sign_report(3, 17, BODY), key.sign_answer(3, 17, BODY));
        for index in 0..report.len() {
            for value in 0..=u8::MAX {
                let mut forged = report.clone().into_bytes();
                forged[index] = value;
                let is_forged = forged != report.as_bytes();
                assert_eq!(key.verify_report(&forged).is_none(), is_forged, "byte {index} is {value}");
            }
            assert_eq!(key.verify_report(&report.as_bytes()[..index]), None, "{index} bytes of a report");
            assert_eq!(key.verify_report(&report.as_bytes()[index + 1..]), None);
        }
        for index in 0..answer.len() {
            let mut forged = answer.clone().into_bytes();
            forged[index] = if forged[index] == b'0' { b'1' } else { b'0' };
            assert!(!key.verify_answer(3, 17, BODY, std::str::from_utf8(&forged).unwrap()));
            assert!(!key.verify_answer(3, 17, BODY, &answer[..index]));
        }
        let head = key.verify_report(report.as_bytes()).unwrap();
        for index in 0..BODY.len() {
            let mut forged = BODY.to_vec();
            forged[index] ^= 1;
            assert!(!head.covers(&forged) && !head.covers(&BODY[..index]));
            assert!(!key.verify_answer(3, 17, &forged, &answer) && !key.verify_answer(3, 17, &BODY[..index], &answer));
        }
        for extended in [format!("{report} "), format!("{report} 1"), format!("{report}0"), report.replace(' ', "  ")] {
            assert_eq!(key.verify_report(extended.as_bytes()), None, "{extended}");
        }
        let other_attempt = Key::new("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 3);
        for other in [other_attempt, Key::new("", 2), Key::new("another secret", 2)] {
            assert_eq!(other.verify_report(report.as_bytes()), None);
            assert!(!other.verify_answer(3, 17, BODY, &answer));
        }
        let returned = format!("Lambert-HMAC 3 17 {} {answer}", hex(&sha256(BODY)));
        assert_eq!(key.verify_report(returned.as_bytes()), None, "an answer is no report");
        for (rank, sequence) in [(2, 17), (3, 16), (3, 18), (17, 3)] {
            assert!(!key.verify_answer(rank, sequence, BODY, &answer));
        }
    }
}
