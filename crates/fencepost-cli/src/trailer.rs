//! The trailer of a git commit that was made under a claim: `Fence: task/auth-3@42 3fa9c1d2`.
//!
//! The digits after the token are the first of the fleet's id: two fleets may have a task of the same name. Git reads trailers
//! only in the last paragraph of a message. [`Trailer::all`] reads every line, because a squash joins whole messages and so
//! leaves trailers in the middle of its own.

use fencepost::Token;
use std::{fmt, str};

const KEY: &str = "Fence";
/// How many digits of the fleet's id a trailer has.
pub const FLEET_DIGITS: usize = 8;
/// The longest line that can be a trailer. The board of a task has at most 128 characters.
pub const LINE_MAX: usize = 256;
/// The line below which git puts a diff for the person who writes the message.
const SCISSORS: &[u8] = b" ------------------------ >8 ------------------------";
/// Lines that git itself adds. With one of them a paragraph of trailers may have other lines, too.
const OF_GIT: [&[u8]; 2] = [b"Signed-off-by: ", b"(cherry picked from commit "];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trailer {
    /// The token of a task's claim.
    pub token: Token,
    /// The fleet's short id, 8 digits.
    pub fleet: String,
}

impl fmt::Display for Trailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY}: {} {}", self.token, self.fleet)
    }
}

impl Trailer {
    /// The trailer for commits under this claim of the fleet with this id. Only claims of tasks have one.
    pub fn new(token: Token, fleet_id: &str) -> Option<Self> {
        let fleet = fleet_id.get(..FLEET_DIGITS).filter(|digits| is_short_id(digits))?.to_owned();
        token.resource.task()?;
        Some(Self { token, fleet })
    }

    /// Reads one line of a message. Like git, it ignores the case of the key and spaces around the colon.
    pub fn of_line(line: &[u8]) -> Option<Self> {
        let line = str::from_utf8(line).ok().filter(|line| line.len() <= LINE_MAX)?;
        let (key, value) = line.split_once(':')?;
        if !key.trim_end().eq_ignore_ascii_case(KEY) {
            return None;
        }
        let mut words = value.split_whitespace();
        let (token, fleet) = (words.next()?.parse().ok()?, words.next()?);
        if fleet.len() != FLEET_DIGITS || words.next().is_some() {
            return None;
        }
        Self::new(token, fleet)
    }

    /// The trailers of a commit's message, in their order.
    pub fn all(message: impl AsRef<[u8]>) -> Vec<Self> {
        message.as_ref().split(|byte| *byte == b'\n').filter_map(Self::of_line).collect()
    }

    /// Is this a trailer of the same task, perhaps with another fence?
    pub fn is_of_same_task(&self, other: &Self) -> bool {
        self.token.resource == other.token.resource && self.fleet == other.fleet
    }

    /// The message with this trailer at its end instead of the same task's others. Trailers of other tasks stay. `comment` begins
    /// the lines that git will remove, if it removes any. `None` for a message without text: git gives up a commit with an empty
    /// message, and with a trailer the message would not be empty.
    pub fn written_to(&self, message: &[u8], comment: Option<&str>) -> Option<Vec<u8>> {
        let is_comment = |line: &[u8]| comment.is_some_and(|begin| line.starts_with(begin.as_bytes()));
        let others = |line: &&[u8]| Self::of_line(line).is_none_or(|found| !found.is_of_same_task(self));
        let is_scissors = |line: &[u8]| is_comment(line) && line.ends_with(SCISSORS);
        let all: Vec<&[u8]> = message.split(|byte| *byte == b'\n').collect();
        // Below the scissors is a diff, which may contain any line.
        let diff_at = all.iter().position(|line| is_scissors(line)).unwrap_or(all.len());
        let mut lines: Vec<&[u8]> = all[..diff_at].iter().copied().filter(others).collect();
        let is_text = |line: &&[u8]| !is_blank(line) && !is_comment(line);
        let end = lines.iter().rposition(is_text)? + 1;
        let rest = lines.split_off(end);
        let text: Vec<&[u8]> = lines.iter().copied().filter(|line| !is_comment(line)).collect();
        if !ends_with_trailers(&text) {
            lines.push(b"");
        }
        let trailer = self.to_string();
        lines.push(trailer.as_bytes());
        match rest.iter().all(|line| is_blank(line)) {
            true if diff_at == all.len() => lines.push(b""),
            true => {}
            false => lines.extend(rest),
        }
        lines.extend(&all[diff_at..]);
        Some(lines.join(&b'\n'))
    }
}

fn is_short_id(text: &str) -> bool {
    text.len() == FLEET_DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_blank(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// Is the last paragraph one of trailers, by git's rule? All its lines are trailers; or one of them is git's own, and at least a
/// quarter are trailers. The first paragraph is the subject, whatever its form.
fn ends_with_trailers(text: &[&[u8]]) -> bool {
    let Some(blank) = text.iter().rposition(|line| is_blank(line)) else { return false };
    if text[..blank].iter().all(|line| is_blank(line)) {
        return false;
    }
    let (mut trailers, mut others, mut has_gits) = (0, 0, false);
    for line in &text[blank + 1..] {
        let of_git = OF_GIT.iter().any(|prefix| line.starts_with(prefix));
        has_gits |= of_git;
        match line {
            [b' ' | b'\t', ..] => {}
            line if of_git || is_trailer(line) => trailers += 1,
            _ => others += 1,
        }
    }
    trailers > 0 && (others == 0 || (has_gits && trailers * 3 >= others))
}

/// `Key: value`, with a key of letters, digits and hyphens.
fn is_trailer(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|byte| *byte == b':') else { return false };
    let key = line[..colon].trim_ascii_end();
    !key.is_empty() && key.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trailer(fence: i64) -> Trailer {
        Trailer::new(format!("task/auth-3@{fence}").parse().unwrap(), "3fa9c1d2e5f60718").unwrap()
    }

    #[test]
    fn a_trailer_names_the_claim_of_a_task_and_its_fleet() {
        assert_eq!(trailer(42).to_string(), "Fence: task/auth-3@42 3fa9c1d2");
        assert_eq!(Trailer::new("lock/deploy@1".parse().unwrap(), "3fa9c1d2e5f60718"), None);
        for id in ["", "3fa9c1d", "3FA9C1D2", "ähnlich-"] {
            assert_eq!(Trailer::new("task/auth-3@42".parse().unwrap(), id), None, "{id}");
        }
    }

    #[test]
    fn lines_are_trailers_or_not() {
        for line in [
            "Fence: task/auth-3@42 3fa9c1d2",
            "fence: task/auth-3@42 3fa9c1d2",
            "FENCE :  task/auth-3@42\t3fa9c1d2  ",
            "Fence:task/auth-3@42 3fa9c1d2\r",
        ] {
            assert_eq!(Trailer::of_line(line.as_bytes()), Some(trailer(42)), "{line:?}");
        }
        let long = format!("Fence: task/auth-3@42 3fa9c1d2{}", " ".repeat(LINE_MAX));
        for line in [
            "",
            ":",
            "Fence",
            "Fence:",
            " Fence: task/auth-3@42 3fa9c1d2",
            "> Fence: task/auth-3@42 3fa9c1d2",
            "Fences: task/auth-3@42 3fa9c1d2",
            "Fence: task/auth-3@42",
            "Fence: task/auth-3@42 3fa9c1d",
            "Fence: task/auth-3@42 3fa9c1d2e5",
            "Fence: task/auth-3@42 3fa9c1d2 more",
            "Fence: task/auth-3@42 3FA9C1D2",
            "Fence: task/auth-3 3fa9c1d2",
            "Fence: task/auth-3@0 3fa9c1d2",
            "Fence: task/auth-3@-1 3fa9c1d2",
            "Fence: task/auth-3@99999999999999999999 3fa9c1d2",
            "Fence: task/auth@1 3fa9c1d2",
            "Fence: lock/deploy@1 3fa9c1d2",
            "Fence: task/../../x-1@1 3fa9c1d2",
            "Fence: task/auth\0-3@42 3fa9c1d2",
            &long,
        ] {
            assert_eq!(Trailer::of_line(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(Trailer::of_line(b"Fence: task/auth-3@42 3fa9c1d2\xff"), None);
        let squash = "one\n\nFence: task/auth-3@41 3fa9c1d2\n\ntwo\n\nFence: task/auth-3@42 3fa9c1d2\n";
        assert_eq!(Trailer::all(squash), [trailer(41), trailer(42)]);
    }

    #[test]
    fn the_trailer_is_the_last_of_the_message_and_the_only_one_of_its_task() {
        const OURS: &str = "Fence: task/auth-3@42 3fa9c1d2";
        for (case, message, expected) in [
            ("a subject", "fix\n", "fix\n\n<>\n"),
            ("no newline", "fix", "fix\n\n<>\n"),
            ("a subject like a trailer", "fix: login\n", "fix: login\n\n<>\n"),
            ("a body", "fix\n\nbecause: of this\nand that\n", "fix\n\nbecause: of this\nand that\n\n<>\n"),
            (
                "trailers",
                "fix\n\nSigned-off-by: A <a@b>\nSee-also: x\n",
                "fix\n\nSigned-off-by: A <a@b>\nSee-also: x\n<>\n",
            ),
            (
                "a cherry-pick",
                "fix\n\nReviewed-by: A\n(cherry picked from commit 1234)\n",
                "fix\n\nReviewed-by: A\n(cherry picked from commit 1234)\n<>\n",
            ),
            ("a folded trailer", "fix\n\nNote: a\n  long one\n", "fix\n\nNote: a\n  long one\n<>\n"),
            ("an amended commit", "fix\n\nFence: task/auth-3@41 3fa9c1d2\n", "fix\n\n<>\n"),
            ("the same again", "fix\n\nbody\n\n<>\n", "fix\n\nbody\n\n<>\n"),
            (
                "another task's and another fleet's",
                "fix\n\nFence: task/auth-4@7 3fa9c1d2\nFence: task/auth-3@50 00000000\n",
                "fix\n\nFence: task/auth-4@7 3fa9c1d2\nFence: task/auth-3@50 00000000\n<>\n",
            ),
            (
                "a squash",
                "# two commits\none\n\nFence: task/auth-3@40 3fa9c1d2\n\n# the second\n\ntwo\n\nFence: task/auth-3@41 3fa9c1d2\n\n# Please enter\n",
                "# two commits\none\n\n\n# the second\n\ntwo\n\n<>\n\n\n# Please enter\n",
            ),
            ("comments below", "fix\n\n# Please enter\n#\n", "fix\n\n<>\n\n# Please enter\n#\n"),
            (
                "a diff below",
                "fix\n# ------------------------ >8 ------------------------\n+Fence: task/auth-3@41 3fa9c1d2\n Fence\nFence: task/auth-3@41 3fa9c1d2\n",
                "fix\n\n<>\n# ------------------------ >8 ------------------------\n+Fence: task/auth-3@41 3fa9c1d2\n Fence\nFence: task/auth-3@41 3fa9c1d2\n",
            ),
        ] {
            let message = message.replace("<>", OURS);
            let written = trailer(42).written_to(message.as_bytes(), Some("#")).expect(case);
            assert_eq!(String::from_utf8(written).unwrap(), expected.replace("<>", OURS), "{case}");
        }
        for empty in
            ["", "\n", "\n# Please enter the commit message\n#\n", "Fence: task/auth-3@41 3fa9c1d2\n"]
        {
            assert_eq!(trailer(42).written_to(empty.as_bytes(), Some("#")), None, "{empty:?}");
        }
        let numbered = trailer(42).written_to(b"#12 fix\n", None).unwrap();
        assert_eq!(numbered, b"#12 fix\n\nFence: task/auth-3@42 3fa9c1d2\n");
        let latin = trailer(42).written_to(b"caf\xe9\n; note\n", Some(";")).unwrap();
        assert_eq!(latin, b"caf\xe9\n\nFence: task/auth-3@42 3fa9c1d2\n; note\n");
    }

    #[test]
    fn a_written_trailer_is_the_last_that_is_read() {
        let lines = [
            "",
            "text",
            "text: more",
            " folded",
            "# comment",
            "Signed-off-by: x",
            "Fence: task/auth-3@7 3fa9c1d2",
            "Fence: task/auth-3@99 3fa9c1d2",
            "Fence: task/web-3@7 3fa9c1d2",
            "Fence: task/auth-3@7 00000000",
        ];
        let mut random = fastrand::Rng::with_seed(16);
        let mut written_to = 0;
        for _ in 0..20_000 {
            let some: Vec<_> =
                (0..random.usize(..10)).filter_map(|_| random.choice(lines.iter())).copied().collect();
            let message = some.join("\n");
            let Some(written) = trailer(42).written_to(message.as_bytes(), Some("#")) else { continue };
            let mut expected = Trailer::all(&message);
            expected.retain(|found| !found.is_of_same_task(&trailer(42)));
            expected.push(trailer(42));
            assert_eq!(Trailer::all(&written), expected, "{message:?}");
            let again = trailer(42).written_to(&written, Some("#")).expect("it has text");
            assert_eq!(Trailer::all(again), expected, "{message:?}: again");
            written_to += 1;
        }
        assert!(written_to > 10_000, "{written_to}");
    }
}
