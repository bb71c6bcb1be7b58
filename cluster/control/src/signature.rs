//! Signatures of reports and replies: HMAC-SHA256 with the secret of the attempt, which is never sent.
//!
//! A signature covers the protocol version, the attempt, the direction, the rank, the sequence number of the report and
//! the SHA-256 of the body. A worker numbers its reports from 1 and never reuses a number. The coordinator rejects a
//! report whose number is not above the last accepted number. A reply is signed with the number of its report.
//! Therefore neither reports nor replies can be replayed.

use std::fmt::{Debug, Formatter};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::PROTOCOL;

/// Prefix of the `Authorization` header of a report: `Lambert-HMAC RANK SEQUENCE BODY-SHA256 SIGNATURE`. Digest and
/// signature are in hexadecimal.
const SCHEME: &[u8] = b"Lambert-HMAC ";

type Digest32 = [u8; 32];

/// Signs and verifies the messages of one attempt.
#[derive(Clone)]
pub struct SigningKey(Hmac<Sha256>);

/// Omits the secret.
impl Debug for SigningKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey")
    }
}

/// Direction of a message. The direction is part of the signature, so a reply cannot be sent back as a report.
#[derive(Clone, Copy)]
enum Direction {
    Report = 1,
    Reply = 2,
}

/// `Authorization` header of a report whose signature is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportHeader {
    /// Rank that signed.
    pub rank: usize,
    /// Sequence number of the report.
    pub sequence: u64,
    body: Digest32,
}

impl ReportHeader {
    /// True if `body` is the signed body.
    pub fn matches_body(&self, body: &[u8]) -> bool {
        self.body == sha256(body)
    }
}

impl SigningKey {
    /// Derives the key of attempt `attempt` from its secret.
    pub fn new(secret: &str, attempt: u32) -> Self {
        let mut mac: Hmac<Sha256> = KeyInit::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length");
        mac.update(b"lambert control ");
        mac.update(PROTOCOL.as_bytes());
        mac.update(&attempt.to_le_bytes());
        Self(mac)
    }

    fn mac(&self, direction: Direction, (rank, sequence): (usize, u64), body: &Digest32) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(&[direction as u8]);
        mac.update(&(rank as u64).to_le_bytes());
        mac.update(&sequence.to_le_bytes());
        mac.update(body);
        mac
    }

    /// Returns the `Authorization` header of a report.
    pub fn sign_report(&self, rank: usize, sequence: u64, body: &[u8]) -> String {
        let body = sha256(body);
        let signature: Digest32 = self.mac(Direction::Report, (rank, sequence), &body).finalize().into_bytes().into();
        format!("Lambert-HMAC {rank} {sequence} {} {}", to_hex(&body), to_hex(&signature))
    }

    /// Verifies the `Authorization` header of a report in constant time. Returns `None` if the signature is invalid.
    /// The caller must also check the body ([`ReportHeader::matches_body`]), and that the sequence number is above the
    /// last accepted one.
    pub fn verify_report(&self, header: &[u8]) -> Option<ReportHeader> {
        let fields = std::str::from_utf8(header.strip_prefix(SCHEME)?).ok()?;
        let mut fields = fields.split(' ');
        let (rank, sequence) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (body, signature) = (parse_hex(fields.next()?)?, parse_hex(fields.next()?)?);
        let mac = self.mac(Direction::Report, (rank, sequence), &body);
        (fields.next().is_none() && mac.verify(&signature.into()).is_ok()).then_some(ReportHeader {
            rank,
            sequence,
            body,
        })
    }

    /// Returns the signature of the reply to report `sequence` of `rank`.
    pub fn sign_reply(&self, rank: usize, sequence: u64, body: &[u8]) -> String {
        let mac = self.mac(Direction::Reply, (rank, sequence), &sha256(body));
        to_hex(&mac.finalize().into_bytes().into())
    }

    /// True if `signature` is valid for the reply `body` to report `sequence` of `rank`. Compares in constant time.
    pub fn verify_reply(&self, rank: usize, sequence: u64, body: &[u8], signature: &str) -> bool {
        let mac = self.mac(Direction::Reply, (rank, sequence), &sha256(body));
        parse_hex(signature).is_some_and(|signature| mac.verify(&signature.into()).is_ok())
    }
}

/// Numbers and signs the reports of a worker, and verifies the replies.
#[derive(Debug)]
pub struct ReportSigner {
    key: SigningKey,
    rank: usize,
    sequence: u64,
}

impl ReportSigner {
    /// Creates the signer of `rank`. The first report has the sequence number 1.
    pub fn new(key: SigningKey, rank: usize) -> Self {
        Self { key, rank, sequence: 0 }
    }

    /// Returns the `Authorization` header of the next report.
    pub fn sign(&mut self, body: &[u8]) -> String {
        self.sequence += 1;
        self.key.sign_report(self.rank, self.sequence, body)
    }

    /// True if `body` is the reply of the coordinator to the last signed report.
    pub fn verify_reply(&self, body: &[u8], signature: &str) -> bool {
        self.key.verify_reply(self.rank, self.sequence, body, signature)
    }
}

fn sha256(bytes: &[u8]) -> Digest32 {
    Sha256::digest(bytes).into()
}

fn to_hex(bytes: &Digest32) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses 32 bytes in lower-case hexadecimal.
fn parse_hex(hex: &str) -> Option<Digest32> {
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

    const BODY: &[u8] = br#"{"rank":3,"pid":7,"host":"h","step":1,"phase":"step","seconds_in_phase":0.5}"#;

    fn key() -> SigningKey {
        SigningKey::new("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 2)
    }

    /// The expected values were computed with hmac and hashlib of Python.
    #[test]
    fn signatures_are_hmac_sha256() {
        assert_eq!(
            key().sign_report(3, 17, BODY),
            "Lambert-HMAC 3 17 a900d58031e2dd7ff3a1d917efad24ba110ff19e5eaeef02505ae1f8fc338d29 6e8178257246ff780dd79fc32abcc462c94ba94d77921ef8efc52a8769762b61"
        );
        assert_eq!(key().sign_reply(3, 17, BODY), "10e4eaf24b9c77dfcf4a9d2785572b8e085ecbf83f7c614f5beaa4dcdeed0ae8");
    }

    #[test]
    fn valid_signatures_are_accepted() {
        let key = key();
        let header = key.verify_report(key.sign_report(3, 17, BODY).as_bytes()).unwrap();
        assert_eq!((header.rank, header.sequence, header.matches_body(BODY)), (3, 17, true));
        assert!(key.verify_reply(3, 17, BODY, &key.sign_reply(3, 17, BODY)));
        let mut signer = ReportSigner::new(key.clone(), 3);
        for sequence in [1, 2] {
            let header = key.verify_report(signer.sign(BODY).as_bytes()).unwrap();
            assert_eq!((header.rank, header.sequence), (3, sequence));
            assert!(signer.verify_reply(b"{}", &key.sign_reply(3, sequence, b"{}")));
            assert!(!signer.verify_reply(b"{}", &key.sign_reply(3, sequence + 1, b"{}")), "reply to another report");
            assert!(!signer.verify_reply(b"{}", &key.sign_reply(2, sequence, b"{}")), "reply to another rank");
        }
    }

    /// Changes single bytes of signatures and bodies, and truncates them at each length. Also verifies signatures for
    /// another attempt, rank, sequence number and direction.
    #[test]
    fn forged_messages_are_rejected() {
        let key = key();
        let (report, reply) = (key.sign_report(3, 17, BODY), key.sign_reply(3, 17, BODY));
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
        for index in 0..reply.len() {
            let mut forged = reply.clone().into_bytes();
            forged[index] = if forged[index] == b'0' { b'1' } else { b'0' };
            assert!(!key.verify_reply(3, 17, BODY, std::str::from_utf8(&forged).unwrap()));
            assert!(!key.verify_reply(3, 17, BODY, &reply[..index]));
        }
        let header = key.verify_report(report.as_bytes()).unwrap();
        for index in 0..BODY.len() {
            let mut forged = BODY.to_vec();
            forged[index] ^= 1;
            assert!(!header.matches_body(&forged) && !header.matches_body(&BODY[..index]));
            assert!(!key.verify_reply(3, 17, &forged, &reply) && !key.verify_reply(3, 17, &BODY[..index], &reply));
        }
        for extended in [format!("{report} "), format!("{report} 1"), format!("{report}0"), report.replace(' ', "  ")] {
            assert_eq!(key.verify_report(extended.as_bytes()), None, "{extended}");
        }
        let other_attempt = SigningKey::new("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 3);
        for other in [other_attempt, SigningKey::new("", 2), SigningKey::new("another secret", 2)] {
            assert_eq!(other.verify_report(report.as_bytes()), None);
            assert!(!other.verify_reply(3, 17, BODY, &reply));
        }
        let returned = format!("Lambert-HMAC 3 17 {} {reply}", to_hex(&sha256(BODY)));
        assert_eq!(key.verify_report(returned.as_bytes()), None, "a reply is not a report");
        for (rank, sequence) in [(2, 17), (3, 16), (3, 18), (17, 3)] {
            assert!(!key.verify_reply(rank, sequence, BODY, &reply));
        }
    }
}
