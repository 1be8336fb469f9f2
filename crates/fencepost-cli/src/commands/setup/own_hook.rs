//! Which hooks in a client's settings did `fence setup` write, and for which installation of fence?
//!
//! A hook of ours is the whole line `sh -c ': fence setup; …' PROGRAM hook EVENT --client NAME FLAGS`. Versions differ only in the
//! code after the mark. Any other line belongs to the user, even if it calls `fence hook`.

use super::{plan::home, recipe::Scope};
use crate::edits::Ours;
use std::path::{Component, Path, PathBuf};

/// The beginning of the shell code, in every version. For the shell it does nothing.
pub const MARK: &str = ": fence setup; ";

/// The events of all versions until this one.
const EVENTS: [&str; 8] = [
    "session-start",
    "user-prompt-submit",
    "pre-tool-use",
    "post-tool-use",
    "stop",
    "subagent-stop",
    "session-end",
    "teammate-idle",
];

/// A hook that `fence setup` wrote, of any version and any installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnHook {
    /// The program as it is called: `fence`, or the path of an installation.
    pub program: String,
    pub event: String,
    pub client: String,
    pub flags: Vec<String>,
}

impl OwnHook {
    pub fn parse(line: &str) -> Option<Self> {
        let (code, rest) = line.strip_prefix("sh -c '")?.split_once('\'')?;
        if !code.starts_with(MARK) || code.contains(['\\', '\n']) {
            return None;
        }
        let (program, rest) = word(rest.strip_prefix(' ')?)?;
        let mut words = rest.strip_prefix(" hook ")?.split(' ');
        let event = words.next().filter(|event| EVENTS.contains(event))?;
        let client = words.next().filter(|flag| *flag == "--client").and_then(|_| words.next())?;
        let mut flags = Vec::new();
        while let Some(flag) = words.next() {
            flags.push(flag.to_owned());
            match flag {
                "--mcp" | "--strict" => {}
                "--board" => flags.push(words.next().filter(|board| is_plain(board))?.to_owned()),
                _ => return None,
            }
        }
        is_plain(client).then(|| Self { program, event: event.into(), client: client.into(), flags })
    }

    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

/// Is it one word for every shell?
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c))
}

/// The first word of a text, as [`shell_quoted`](crate::output::text::shell_quoted) writes it, and the rest of the text.
fn word(text: &str) -> Option<(String, &str)> {
    let Some(mut quoted) = text.strip_prefix('\'') else {
        let (word, rest) = text.split_at(text.find(' ')?);
        return is_plain(word).then(|| (word.to_owned(), rest));
    };
    let mut word = String::new();
    loop {
        let (part, rest) = quoted.split_once('\'')?;
        word.push_str(part);
        let Some(more) = rest.strip_prefix("\\''") else { return Some((word, rest)) };
        word.push('\'');
        quoted = more;
    }
}

/// The installation of fence that runs now. Its hooks may be replaced and removed; those of another one are left alone, because
/// the settings of a project are shared.
#[derive(Debug)]
pub struct Installation {
    scope: Scope,
    program: Option<PathBuf>,
    /// Directories in which a program that does not exist was one of this user.
    own: Vec<PathBuf>,
}

impl Installation {
    pub fn here(scope: Scope, base: &Path) -> Self {
        let program = std::env::current_exe().and_then(|program| program.canonicalize()).ok();
        // Not the root, where everybody's directories are.
        let own = home().into_iter().chain([base.to_owned()]).filter(|own| own.parent().is_some());
        Self { scope, program, own: own.collect() }
    }

    pub fn owns(&self, hook: &OwnHook) -> bool {
        let program = Path::new(&hook.program);
        // The user's own settings have only hooks of this user. The plain name is every installation.
        if self.scope == Scope::User || hook.program == "fence" {
            return true;
        }
        let goes_up = program.components().any(|part| part == Component::ParentDir);
        match program.canonicalize() {
            _ if !program.is_absolute() => false,
            Ok(program) => self.program == Some(program),
            // It was moved, or built anew elsewhere.
            Err(_) => !goes_up && self.own.iter().any(|own| program.starts_with(own)),
        }
    }
}

impl Ours for Installation {
    fn includes(&self, text: &str) -> bool {
        OwnHook::parse(text).is_some_and(|hook| self.owns(&hook))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::hook_line, *};
    use crate::output::text::shell_quoted;

    #[test]
    fn lines_of_every_installation_are_recognised() {
        for program in ["fence", "/home/kim/.cargo/bin/fence", "/a b/it's/fence", "/x/'", "'"] {
            let quoted = shell_quoted(Path::new(program));
            for line in [hook_line::guard(&quoted, true), hook_line::quiet(&quoted)] {
                let parsed =
                    OwnHook::parse(&format!("{line} hook stop --client my-client --mcp --board a.b-1"));
                let flags = ["--mcp", "--board", "a.b-1"].map(str::to_owned).to_vec();
                let hook = OwnHook {
                    program: program.into(),
                    event: "stop".into(),
                    client: "my-client".into(),
                    flags,
                };
                assert_eq!(parsed, Some(hook), "{line}");
            }
        }
        let other_version = "sh -c ': fence setup; whatever \"$@\"' fence hook stop --client claude";
        assert!(OwnHook::parse(other_version).is_some());
    }

    #[test]
    fn lines_of_users_are_not_ours() {
        let code = "sh -c ': fence setup; \"$0\" \"$@\"'";
        let tail = "hook stop --client claude";
        assert!(OwnHook::parse(&format!("{code} fence {tail}")).is_some());
        for line in [
            "fence hook stop --client claude".to_owned(),
            "/home/kim/bin/fence hook pre-tool-use --client claude --strict".to_owned(),
            "sh -c '\"$0\" \"$@\"' fence hook stop --client claude".to_owned(),
            format!("{code} fence {tail} && say done"),
            format!("{code} fence {tail}; say done"),
            format!("{code} fence {tail} "),
            format!("{code} fence {tail} --guard=x"),
            format!("{code} fence {tail} --board $(say)"),
            format!("{code} fence {tail} --board"),
            format!("{code} fence {tail}\nsay done"),
            format!("{code} fence hook undo --client claude"),
            format!("{code} fence hook stop"),
            format!("{code} fence hook stop --client $(say)"),
            format!("{code} $(say) {tail}"),
            format!("{code} '/x/fence'$(say) {tail}"),
            format!("{code} '/x/fence {tail}"),
            format!("{code}'$(say)' fence {tail}"),
            format!("say; {code} fence {tail}"),
            format!(" {code} fence {tail}"),
            code.to_owned(),
            String::new(),
        ] {
            assert_eq!(OwnHook::parse(&line), None, "{line}");
        }
    }

    #[test]
    fn an_installation_owns_its_hooks_and_those_of_its_older_places() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        for name in ["fence", "other"] {
            std::fs::write(path(name), "").expect("written");
        }
        std::os::unix::fs::symlink(path("fence"), path("link")).expect("linked");
        let installation = |scope| Installation {
            scope,
            program: path("fence").canonicalize().ok(),
            own: vec![dir.path().join("home"), dir.path().join("repo")],
        };
        let own = installation(Scope::Project);
        let shown = |name: &str| path(name).display().to_string();
        for (program, is_own) in [
            ("fence".to_owned(), true),
            (shown("fence"), true),
            (shown("link"), true),
            (shown("home/old/fence"), true),
            (shown("repo/target/debug/fence"), true),
            // Another program, one of somebody else, and one that depends on the directory.
            (shown("other"), false),
            (shown("homes/fence"), false),
            (shown("home/../kim/fence"), false),
            ("/nowhere/kim/bin/fence".to_owned(), false),
            ("./fence".to_owned(), false),
            ("bin/fence".to_owned(), false),
        ] {
            let (event, client) = ("stop".into(), "claude".into());
            let hook = OwnHook { program, event, client, flags: Vec::new() };
            assert_eq!(own.owns(&hook), is_own, "{hook:?}");
            assert!(installation(Scope::User).owns(&hook), "{hook:?}");
        }
    }
}
