//! The scripts that git runs as hooks.
//!
//! A script calls the hook that was there before, then `fence git hook NAME`. Without `FENCE_CLAIM` and the variables of an agent's
//! session it does not start fence at all, so that people pay nothing for it. Its second line has a digest of the rest: a script that somebody changed is never overwritten.

use crate::{identity, names::digest, output::text::shell_quoted};
use std::path::Path;

/// A hook of ours, and its part in the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Acts for the claim in `FENCE_CLAIM`, or of the agent's session.
    Client,
    /// Decides about a push, with or without a claim.
    Receiving,
    /// Only calls the hook that was there: it has to, if our directory of hooks replaces another.
    PassOn,
}

pub const HOOKS: [(&str, Kind); 6] = [
    ("pre-commit", Kind::Client),
    ("pre-merge-commit", Kind::Client),
    ("prepare-commit-msg", Kind::Client),
    ("commit-msg", Kind::Client),
    ("pre-push", Kind::Client),
    ("pre-receive", Kind::Receiving),
];

/// Git's other hooks. A script for one of these changes nothing if there is no hook to call.
pub const PASSED_ON: [&str; 13] = [
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "update",
    "post-receive",
    "post-update",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
];

/// Hooks that change what git does merely by being there, or that git calls very often. They get a script only if there is one to
/// call.
pub const PASSED_ON_IF_THERE: [&str; 4] =
    ["reference-transaction", "post-index-change", "push-to-checkout", "proc-receive"];

/// The name of the hook that was there before, beside ours.
pub const KEPT: &str = ".before-fence";

const SHELL: &str = "#!/bin/sh\n";
const MARK: &str = "# fence git hook ";

/// The text of a hook. `before`: the directory of hooks that ours replaces.
pub fn text(name: &str, kind: Kind, program: &Path, before: Option<&str>) -> String {
    let kept = match before {
        Some(directory) => format!("kept={}/{name}", shell_quoted(Path::new(directory))),
        None => format!("kept=\"$0{KEPT}\""),
    };
    let mut rest = format!(
        "# `fence git install` wrote this, and `fence git install --remove` takes it away. Changes are lost.\n{kept}\n"
    );
    match kind {
        Kind::PassOn => rest.push_str("[ -x \"$kept\" ] || exit 0\nexec \"$kept\" \"$@\"\n"),
        Kind::Client => {
            rest.push_str("if [ -x \"$kept\" ]; then \"$kept\" \"$@\" || exit; fi\n");
            let sessions: String =
                identity::variables().iter().skip(1).map(|variable| format!("${variable}")).collect();
            rest.push_str(&format!("[ -n \"$FENCE_CLAIM{sessions}\" ] || exit 0\n"));
            rest.push_str(&find(
                program,
                "there is a claim or a session of an agent, and no program fence to check it",
                "install fence; a person who works without a claim unsets FENCE_CLAIM and the variables of the session",
            ));
            rest.push_str(&format!("exec \"$fence\" git hook {name} \"$@\"\n"));
        }
        Kind::Receiving => {
            rest.push_str("pushed=$(cat)\n");
            rest.push_str(
                "if [ -x \"$kept\" ]; then printf '%s\\n' \"$pushed\" | \"$kept\" \"$@\" || exit; fi\n",
            );
            rest.push_str(&find(
                program,
                "this repository compares fences, and has no program fence to do it",
                "whoever looks after this repository: install fence, or remove hooks/pre-receive",
            ));
            rest.push_str(&format!("printf '%s\\n' \"$pushed\" | \"$fence\" git hook {name}\n"));
        }
    }
    format!("{SHELL}{MARK}{}\n{rest}", digest(&rest))
}

/// Finds fence: where it was at the installation, else by PATH.
fn find(program: &Path, problem: &str, hint: &str) -> String {
    format!(
        "fence={}\n[ -x \"$fence\" ] || fence=$(command -v fence) || {{\n  echo 'error: {problem}' >&2\n  echo 'hint: {hint}' >&2\n  exit 1\n}}\n",
        shell_quoted(program)
    )
}

/// Who wrote a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    Fence,
    /// Fence wrote it, and somebody changed it.
    FenceAndOthers,
    Others,
}

pub fn author(text: &[u8]) -> Author {
    let text = String::from_utf8_lossy(text);
    let marked = text.strip_prefix(SHELL).and_then(|text| text.strip_prefix(MARK));
    match marked.map(|text| text.split_once('\n').unwrap_or((text, ""))) {
        Some((mark, rest)) if mark == digest(rest) => Author::Fence,
        Some(_) => Author::FenceAndOthers,
        None if text.contains(MARK) => Author::FenceAndOthers,
        None => Author::Others,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_script_is_recognised() {
        for (name, kind) in HOOKS {
            for before in [None, Some(".husky/_"), Some("/home/kim o'neil/hooks")] {
                let text = text(name, kind, Path::new("/opt/it's here/fence"), before);
                assert_eq!(author(text.as_bytes()), Author::Fence);
                assert_eq!(author(format!("{text}make lint\n").as_bytes()), Author::FenceAndOthers);
                assert_eq!(author(text.replacen("kept", "old", 1).as_bytes()), Author::FenceAndOthers);
                let moved = text.replacen(SHELL, "#!/bin/sh\nset -e\n", 1);
                assert_eq!(author(moved.as_bytes()), Author::FenceAndOthers);
            }
        }
        assert_eq!(author(b"#!/bin/sh\nfence git hook pre-commit\n"), Author::Others);
        assert_eq!(author(b""), Author::Others);
    }

    #[test]
    fn the_shell_can_read_every_script() {
        for before in [None, Some("/home/kim o'neil/hooks")] {
            for (name, kind) in HOOKS.into_iter().chain([("post-commit", Kind::PassOn)]) {
                let script = text(name, kind, Path::new("/opt/it's here/fence"), before);
                let read = std::process::Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
                assert!(read.status.success() && read.stderr.is_empty(), "{script}\n{read:?}");
            }
        }
    }
}
