//! Kept output: bytes as the engine stores them, and back.

use fencepost::once::{OUTPUT_KEPT, Output};

/// The stored form of a stream, of which the first [`OUTPUT_KEPT`] bytes are kept, and one more if there was more.
pub fn output(mut bytes: Vec<u8>) -> Option<Output> {
    let cut = bytes.len() > OUTPUT_KEPT;
    bytes.truncate(OUTPUT_KEPT);
    if bytes.is_empty() {
        return None;
    }
    let whole = match std::str::from_utf8(&bytes) {
        // The limit fell into the middle of a character.
        Err(e) if cut && e.error_len().is_none() => e.valid_up_to(),
        _ => bytes.len(),
    };
    // PostgreSQL's text cannot hold NUL.
    let text = std::str::from_utf8(&bytes[..whole]).ok().filter(|text| !text.contains('\0'));
    Some(match text {
        Some(text) => Output { text: text.into(), base64: false, cut },
        None => Output { text: encode(&bytes), base64: true, cut },
    })
}

/// The bytes of a stored stream.
pub fn bytes(output: &Output) -> Vec<u8> {
    if output.base64 { decode(&output.text) } else { output.text.clone().into_bytes() }
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// RFC 4648, with padding.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// Ignores what is no digit: the engine does not check the text of other clients.
fn decode(text: &str) -> Vec<u8> {
    let digits = text.bytes().filter_map(|byte| ALPHABET.iter().position(|&digit| digit == byte));
    let digits: Vec<u32> = digits.filter_map(|digit| u32::try_from(digit).ok()).collect();
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let bits = chunk.iter().fold(0, |bits, digit| bits << 6 | digit) << (6 * (4 - chunk.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..chunk.len().max(1)]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded), plain.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), all);
    }

    #[test]
    fn bytes_are_kept_as_they_are_up_to_the_limit() {
        let of = |bytes: &[u8]| output(bytes.to_vec());
        assert_eq!(of(b""), None);
        assert_eq!(of(b"sent\n").unwrap(), Output { text: "sent\n".into(), base64: false, cut: false });
        for binary in [&b"a\0b"[..], b"\xff\xfe", b"caf\xc3"] {
            let kept = of(binary).unwrap();
            assert!(kept.base64 && !kept.cut, "{kept:?}");
            assert_eq!(bytes(&kept), binary);
        }
        let long = "x".repeat(OUTPUT_KEPT);
        assert!(!of(long.as_bytes()).unwrap().cut);
        let kept = of((long.clone() + "y").as_bytes()).unwrap();
        assert_eq!((kept.text.len(), kept.cut, kept.base64), (OUTPUT_KEPT, true, false));
        // A character is not cut in two.
        let kept = of(("x".repeat(OUTPUT_KEPT - 1) + "é").as_bytes()).unwrap();
        assert_eq!((kept.text.len(), kept.cut, kept.base64), (OUTPUT_KEPT - 1, true, false));
        let kept = of(&vec![0; OUTPUT_KEPT + 1]).unwrap();
        assert_eq!((kept.cut, kept.base64, bytes(&kept).len()), (true, true, OUTPUT_KEPT));
    }
}
