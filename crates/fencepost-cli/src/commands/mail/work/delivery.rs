//! The input of a command, and the meaning of its exit.

use super::super::content;
use fencepost::{Error, Json, OUTPUT_MAX, Result, mail::claim::ClaimedMessage};

/// sysexits: the input data was incorrect in some way.
const DATA_ERROR: u8 = 65;

/// The standard input of the command.
pub fn input(claims: &[ClaimedMessage], batched: bool) -> Result<Vec<u8>> {
    if !batched {
        let payload = claims.first().and_then(|claimed| claimed.message.payload.as_ref());
        return Ok(payload.map(content::read).unwrap_or_default().into_bytes());
    }
    let mut lines = String::new();
    for claimed in claims {
        let json = serde_json::to_string(claimed).map_err(Error::internal)?;
        lines.push_str(&content::in_a_line(&json));
        lines.push('\n');
    }
    Ok(lines.into_bytes())
}

/// The result of the command for its messages.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// With the outputs of each message, in order.
    Done(Vec<Vec<Json>>),
    Failed {
        reason: String,
        retry: bool,
    },
}

/// The verdict for an exit code and an output.
pub fn verdict(code: u8, printed: &[u8], messages: usize, batched: bool) -> Verdict {
    if code != 0 {
        let by_signal = if code > 128 { format!(", as by signal {}", code - 128) } else { String::new() };
        let reason = format!("its command exited with {code}{by_signal}");
        return Verdict::Failed { reason, retry: code != DATA_ERROR };
    }
    match outputs(printed, messages, batched) {
        Ok(outputs) => Verdict::Done(outputs),
        Err(reason) => Verdict::Failed { reason, retry: true },
    }
}

fn outputs(printed: &[u8], messages: usize, batched: bool) -> Result<Vec<Vec<Json>>, String> {
    if printed.len() > OUTPUT_MAX {
        return Err(format!(
            "its command printed more than {OUTPUT_MAX} bytes, which is more than is stored"
        ));
    }
    let text = std::str::from_utf8(printed).map_err(|_| "its command printed something that is not UTF-8")?;
    // Trailing line ends are removed, as in a shell.
    let text = text.trim_end_matches('\n');
    if text.is_empty() {
        return Ok(vec![Vec::new(); messages]);
    }
    let parts: Vec<&str> = if batched { text.lines().collect() } else { vec![text] };
    if parts.len() != messages {
        // fence does not guess which line belongs to which message.
        return Err(format!("its command printed {} lines for {messages} messages", parts.len()));
    }
    let output = |part| content::output(part).map(|output| vec![output]).map_err(|e| e.message().to_owned());
    parts.into_iter().map(output).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(reason: &str, retry: bool) -> Verdict {
        Verdict::Failed { reason: reason.into(), retry }
    }

    fn done(outputs: &[&[&str]]) -> Verdict {
        let json = |text: &&str| content::output(text).unwrap();
        Verdict::Done(outputs.iter().map(|outputs| outputs.iter().map(json).collect()).collect())
    }

    #[test]
    fn an_exit_code_is_a_verdict() {
        assert_eq!(verdict(0, b"", 1, false), done(&[&[]]));
        assert_eq!(verdict(0, b"\n", 1, false), done(&[&[]]));
        assert_eq!(verdict(0, b"{\"a\": 1}\n", 1, false), done(&[&["{\"a\": 1}"]]));
        assert_eq!(verdict(0, b"two\nlines\n\n", 1, false), done(&[&["two\nlines"]]));
        assert_eq!(verdict(3, b"{}", 1, false), failed("its command exited with 3", true));
        assert_eq!(verdict(65, b"{}", 1, false), failed("its command exited with 65", false));
        assert_eq!(verdict(137, b"", 1, false), failed("its command exited with 137, as by signal 9", true));
    }

    #[test]
    fn output_that_cannot_be_stored_is_a_failure() {
        let much = vec![b'x'; OUTPUT_MAX + 1];
        for (printed, reason) in [
            (&much[..], "its command printed more than 1048576 bytes, which is more than is stored"),
            (b"\xff", "its command printed something that is not UTF-8"),
        ] {
            assert_eq!(verdict(0, printed, 1, false), failed(reason, true));
        }
    }

    #[test]
    fn a_batch_has_a_line_for_each_message_or_none() {
        assert_eq!(verdict(0, b"", 2, true), done(&[&[], &[]]));
        assert_eq!(verdict(0, b"1\nb\n", 2, true), done(&[&["1"], &["b"]]));
        assert_eq!(verdict(0, b"1\n", 2, true), failed("its command printed 1 lines for 2 messages", true));
        assert_eq!(
            verdict(0, b"1\n2\n3", 2, true),
            failed("its command printed 3 lines for 2 messages", true)
        );
    }
}
