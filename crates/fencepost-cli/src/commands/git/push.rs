//! A push that git has not accepted yet: its branches, and the trailers of its new commits.

use super::accepted::Fences;
use crate::trailer::{LINE_MAX, Trailer};
use fencepost::{Code, Error, Result};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};

/// How many tasks one push may name. More are no work of agents, and would fill the memory.
const TASKS_MAX: usize = 100_000;

/// A line of `pre-receive`: a ref, the commit that it had, and the one that it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    pub name: String,
    /// `None` if the ref is new.
    pub old: Option<String>,
    pub new: String,
}

/// The updates of a push; deletions are left out.
pub fn updates(input: &str) -> Result<Vec<Update>> {
    let is_object = |id: &str| id.len() >= 40 && id.bytes().all(|b| b.is_ascii_hexdigit());
    let mut updates = Vec::new();
    for line in input.lines().filter(|line| !line.is_empty()) {
        let mut words = line.splitn(3, ' ');
        let (Some(old), Some(new), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(malformed(line));
        };
        if !is_object(old) || !is_object(new) {
            return Err(malformed(line));
        }
        let there = |id: &str| id.bytes().any(|b| b != b'0');
        if there(new) {
            updates.push(Update {
                name: name.into(),
                old: there(old).then(|| old.to_owned()),
                new: new.into(),
            });
        }
    }
    Ok(updates)
}

fn malformed(line: &str) -> Error {
    Error::new(Code::Invalid, format!("`{line}` is not OLD NEW REF, as git passes to pre-receive"))
}

/// The highest fence of each task in the new commits of a push.
pub fn fences(updates: &[Update]) -> Result<Fences> {
    let (mut fences, mut tasks) = (Fences::default(), 0);
    let new: Vec<&str> = updates.iter().map(|update| update.new.as_str()).collect();
    read_commits(&new, &["--not", "--all"], |_, trailers| {
        for Trailer { token, fleet } in trailers {
            let task = token.resource.id();
            tasks += usize::from(fences.of(&fleet, task).is_none());
            if tasks > TASKS_MAX {
                return Err(Error::new(
                    Code::TooLarge,
                    format!("the push names more than {TASKS_MAX} tasks in its trailers"),
                )
                .hint("push it in parts"));
            }
            fences.raise(&fleet, task, token.fence);
        }
        Ok(())
    })?;
    Ok(fences)
}

/// The first commit without a trailer that the push adds to a branch. Commits count that another branch has already: otherwise a
/// detour over that branch would bring them in.
pub fn without_trailer(update: &Update) -> Result<Option<String>> {
    let mut found = None;
    let mut look = |commit: &str, trailers: Vec<Trailer>| {
        if trailers.is_empty() && found.is_none() {
            found = Some(commit.to_owned());
        }
        Ok(())
    };
    match &update.old {
        Some(old) => read_commits(&[&update.new, &format!("^{old}")], &[], &mut look)?,
        None => read_commits(&[&update.new], &["--not", "--all"], &mut look)?,
    }
    Ok(found)
}

/// Does a branch match one of these names? A name without `refs/` is a branch; `*` stands for any text.
pub fn is_required(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| match pattern.starts_with("refs/") {
        true => matches(pattern, name),
        false => name.strip_prefix("refs/heads/").is_some_and(|branch| matches(pattern, branch)),
    })
}

fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Reads these commits and those before them, in one git process, whatever their number and size.
fn read_commits(
    commits: &[&str],
    limits: &[&str],
    mut each: impl FnMut(&str, Vec<Trailer>) -> Result<()>,
) -> Result<()> {
    if commits.is_empty() {
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::unavailable(format!("git rev-list cannot be read: {e}"));
    let mut command = Command::new("git");
    // A message has no NUL, or ends there for git. So three fields that end with one cannot be confused.
    command.args(["rev-list", "--stdin", "--format=tformat:%x00%H%x00%B%x00"]).args(limits);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // Git reads all of it before it prints. If git has ended, its exit code says why.
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all((commits.join("\n") + "\n").as_bytes());
    }
    let output = child.stdout.take().ok_or_else(|| Error::internal("git rev-list has no output"))?;
    let read = Fields(BufReader::new(output)).read(&mut each);
    if read.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(failed)?;
    read?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::unavailable(format!("git rev-list failed: {status}"))),
    }
}

/// The output of git: `commit ID`, the id and the message, each with a NUL at its end.
struct Fields<R>(R);

impl<R: BufRead> Fields<R> {
    fn read(&mut self, each: &mut impl FnMut(&str, Vec<Trailer>) -> Result<()>) -> Result<()> {
        let cut = || Error::unavailable("the output of git rev-list ends too early");
        while self.lines(|_| {})? {
            let (mut id, mut trailers) = (String::new(), Vec::new());
            let whole = self.lines(|line| id = String::from_utf8_lossy(line).into_owned())?
                && self.lines(|line| trailers.extend(Trailer::of_line(line)))?;
            if !whole {
                return Err(cut());
            }
            each(&id, trailers)?;
        }
        Ok(())
    }

    /// Reads one field line by line, without a limit on the field and with little of a long line. `false` at the end of the output.
    fn lines(&mut self, mut each: impl FnMut(&[u8])) -> Result<bool> {
        let mut line = Vec::new();
        loop {
            let bytes = match self.0.fill_buf() {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                bytes => {
                    bytes.map_err(|e| Error::unavailable(format!("git rev-list cannot be read: {e}")))?
                }
            };
            if bytes.is_empty() {
                return Ok(false);
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | 0));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            // One byte more than a trailer may have: it must not be read as one.
            line.extend(part.iter().take((LINE_MAX + 1).saturating_sub(line.len())));
            let (ended, last) = (end.is_some(), end.is_some_and(|end| bytes[end] == 0));
            let used = part.len() + usize::from(ended);
            self.0.consume(used);
            if ended {
                each(&line);
                line.clear();
            }
            if last {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_left_out_and_malformed_lines_refused() {
        let (a, b, none) = ("a".repeat(40), "b".repeat(64), "0".repeat(40));
        let input =
            format!("{none} {a} refs/heads/new\n{a} {none} refs/heads/gone\n{a} {b} refs/heads/a b\n");
        let expected = [
            Update { name: "refs/heads/new".into(), old: None, new: a.clone() },
            Update { name: "refs/heads/a b".into(), old: Some(a.clone()), new: b },
        ];
        assert_eq!(updates(&input).unwrap(), expected);
        for bad in ["x", "a b c", "--all --not refs/heads/x", &format!("{a} {a}"), &format!("{a} --all x")] {
            assert_eq!(updates(bad).unwrap_err().code(), Code::Invalid, "{bad}");
        }
    }

    #[test]
    fn names_of_branches() {
        for (pattern, name, expected) in [
            ("main", "refs/heads/main", true),
            ("main", "refs/heads/main2", false),
            ("main", "refs/heads/x/main", false),
            ("main", "refs/tags/main", false),
            ("release/*", "refs/heads/release/1.2", true),
            ("release/*", "refs/heads/release", false),
            ("*", "refs/heads/a/b", true),
            ("*", "refs/tags/v1", false),
            ("refs/tags/*", "refs/tags/v1", true),
            ("*/*-final", "refs/heads/x/y-final", true),
            ("*/*-final", "refs/heads/x-final", false),
            ("a*a", "refs/heads/a", false),
            ("", "refs/heads/main", false),
        ] {
            assert_eq!(is_required(name, &[pattern.into()]), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn fields_are_read_line_by_line() {
        let long = "x".repeat(100_000);
        let padded = format!("Fence: task/a-1@1 00000000{}", " ".repeat(LINE_MAX));
        let output = format!(
            "commit 1\n\0id1\0subject\n\nFence: task/a-1@3 00000000\n\0\ncommit 2\n\0id2\0{long}\ncommit 9\n\nFence: task/a-1@4 00000000\nFence: task/b-1@1 00000000\0\ncommit 3\n\0id3\0{padded}\n\0\n"
        );
        for size in [1, 7, 8192] {
            let mut read = Vec::new();
            let fields = BufReader::with_capacity(size, output.as_bytes());
            Fields(fields)
                .read(&mut |id: &str, trailers: Vec<Trailer>| {
                    let trailers: Vec<_> = trailers.iter().map(|found| found.token.to_string()).collect();
                    read.push(format!("{id} {}", trailers.join(" ")));
                    Ok(())
                })
                .unwrap();
            assert_eq!(read, ["id1 task/a-1@3", "id2 task/a-1@4 task/b-1@1", "id3 "], "{size}");
        }
        for cut in ["commit 1\n\0", "commit 1\n\0id", "commit 1\n\0id\0text"] {
            assert!(Fields(cut.as_bytes()).read(&mut |_: &str, _| Ok(())).is_err(), "{cut:?}");
        }
    }
}
