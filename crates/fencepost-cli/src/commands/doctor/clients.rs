//! The hooks of agents' clients: does each one block a guarded command, and does the client run it?

use super::super::setup::{self, InstalledHook, Scope, State};
use super::{Finding, ok, problem, warning};
use crate::context::Context;
use fencepost::{Code, Error, Result, files};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The longest settings file that is read.
const LARGEST: u64 = 64 * 1024 * 1024;

/// One line per hook that guards commands, and one per recipe that is not as this version would write it.
pub fn findings(context: &Context) -> Vec<Finding> {
    let installed = match setup::installed(context) {
        Ok(installed) => installed,
        Err(e) => return vec![problem("clients", &e)],
    };
    let mut findings = Vec::new();
    for place in installed.iter().filter(|place| place.state != State::Missing) {
        let scope = place.scope.as_str();
        if place.state == State::Stale {
            let message =
                format!("the files of recipe {} ({scope}) are not as this fence writes them", place.recipe);
            findings.push(warning("clients", message, &format!("fence setup {} --{scope}", place.recipe)));
        }
        let before: Vec<_> = place.hooks.iter().filter(|hook| hook.event == "pre-tool-use").collect();
        findings.extend(fired(&before));
        let codex = place.hooks.iter().find(|hook| hook.client == "codex");
        findings.extend(codex.map(|hook| trusted(Path::new(&hook.file), place.scope)));
    }
    findings
}

/// Fires the hooks that a client calls before its tools, for a push and with a fleet that cannot be reached: each must block.
fn fired(hooks: &[&InstalledHook]) -> Option<Finding> {
    let event = json!({
        "hook_event_name": "PreToolUse", "session_id": "doctor", "tool_name": "Bash", "tool_input": { "command": "git push" },
    });
    let InstalledHook { client, file, .. } = hooks.first()?;
    for hook in hooks {
        let wrong = match fire(&hook.command, &event) {
            Ok((2, said)) if !said.is_empty() => continue,
            Ok((code, _)) => format!("the hook of {client} in {file} does not block a push (exit {code})"),
            Err(e) => e.message().to_owned(),
        };
        let hint = format!("fence setup {client} writes it anew");
        return Some(problem("clients", &Error::new(Code::Invalid, wrong).hint(hint)));
    }
    Some(ok(
        "clients",
        format!("the hook of {client} in {file} blocks a push if the fleet cannot be reached"),
    ))
}

/// The exit code and standard error of a hook.
fn fire(command: &str, event: &Value) -> Result<(i32, String)> {
    let failed = |e: std::io::Error| Error::unavailable(format!("the hook cannot be started: {e}"));
    let mut child = Command::new("sh")
        .args(["-c", command])
        // Nobody listens there.
        .env("FENCE_URL", "http://127.0.0.1:9")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // It may end without reading.
    let _ = child.stdin.take().map(|mut input| input.write_all(event.to_string().as_bytes()));
    let done = child.wait_with_output().map_err(failed)?;
    Ok((done.status.code().unwrap_or(-1), String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

/// Codex skips a hook that the user has not trusted, and says nothing. It remembers a digest of each trusted hook.
fn trusted(file: &Path, scope: Scope) -> Finding {
    let problem = |message: String| {
        warning(
            "clients",
            message,
            "start codex in this repository once, and choose \"Trust all\" when it says that hooks need review (later: /hooks)",
        )
    };
    let config = codex_home().map(|home| home.join("config.toml"));
    let config: toml::Table = config
        .and_then(|file| files::text(file, LARGEST).ok())
        .and_then(|text| text.parse().ok())
        .unwrap_or_default();
    let Some(hooks) = files::text(file, LARGEST).ok().and_then(|text| serde_json::from_str(&text).ok())
    else {
        return problem(format!("{} is not JSON, so Codex reads no hooks from it", file.display()));
    };
    let key = std::fs::canonicalize(file).unwrap_or(file.to_owned());
    let skipped: Vec<String> = digests(&key, &hooks)
        .into_iter()
        .filter(|(key, digest)| state(&config, key).as_deref() != Some(digest))
        .filter_map(|(key, _)| Some(key.rsplit(':').nth(2)?.to_owned()))
        .collect();
    if !skipped.is_empty() {
        return problem(format!(
            "Codex skips hooks of {} that you have not trusted: {}",
            file.display(),
            skipped.join(", ")
        ));
    }
    let directory = key.parent().and_then(Path::parent).unwrap_or(&key).display().to_string();
    let trust =
        config.get("projects").and_then(|all| all.get(&directory)).and_then(|one| one.get("trust_level"));
    if scope == Scope::Project && trust.and_then(toml::Value::as_str) != Some("trusted") {
        return problem(format!(
            "Codex reads {} only if you trust this folder, and you have not",
            file.display()
        ));
    }
    ok("clients", format!("Codex runs the hooks of {}", file.display()))
}

fn codex_home() -> Option<PathBuf> {
    let named = std::env::var_os("CODEX_HOME").map(PathBuf::from);
    named.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".codex")))
}

fn state(config: &toml::Table, key: &str) -> Option<String> {
    config.get("hooks")?.get("state")?.get(key)?.get("trusted_hash")?.as_str().map(str::to_owned)
}

/// The keys of our hooks in a file, with the digests by which Codex 0.169 knows them.
fn digests(file: &Path, hooks: &Value) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (event, groups) in hooks.get("hooks").and_then(Value::as_object).into_iter().flatten() {
        let name = snake(event);
        for (group, entry) in groups.as_array().into_iter().flatten().enumerate() {
            for (handler, hook) in entry["hooks"].as_array().into_iter().flatten().enumerate() {
                let command = hook["command"].as_str().unwrap_or_default();
                if !command.contains(" hook ") || !command.contains("fence") {
                    continue;
                }
                let key = format!("{}:{name}:{group}:{handler}", file.display());
                found.push((key, digest(&name, entry.get("matcher"), hook)));
            }
        }
    }
    found
}

/// Codex hashes this JSON without spaces, with sorted keys.
fn digest(event: &str, matcher: Option<&Value>, hook: &Value) -> String {
    let longest = if event == "session_end" { 3 } else { u64::MAX };
    let timeout = hook["timeout"].as_u64().unwrap_or(600).min(longest);
    let mut handler = Map::new();
    handler.insert("async".into(), json!(false));
    handler.insert("command".into(), hook["command"].clone());
    if let Some(status) = hook.get("statusMessage") {
        handler.insert("statusMessage".into(), status.clone());
    }
    handler.insert("timeout".into(), json!(timeout));
    handler.insert("type".into(), json!("command"));
    let mut identity = Map::new();
    identity.insert("event_name".into(), json!(event));
    identity.insert("hooks".into(), json!([handler]));
    if let Some(matcher) = matcher {
        identity.insert("matcher".into(), matcher.clone());
    }
    let hash = Sha256::digest(Value::Object(identity).to_string());
    format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// `pre_tool_use` for `PreToolUse`.
fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (at, c) in name.chars().enumerate() {
        if c.is_ascii_uppercase() && at > 0 {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digests are those that `hooks/list` of Codex 0.169.0 returned for this file.
    #[test]
    fn digests_are_those_of_codex() {
        let hooks = json!({ "hooks": {
            "PreToolUse": [{ "matcher": "Bash", "hooks": [
                { "type": "command", "command": "fence hook pre-tool-use --client codex", "timeout": 60, "statusMessage": "checking" }] }],
            "Stop": [
                { "hooks": [{ "type": "command", "command": "say done" }] },
                { "hooks": [{ "type": "command", "command": "fence hook stop --client codex" }] }],
            "SessionEnd": [{ "hooks": [
                { "type": "command", "command": "fence hook session-end --client codex", "timeout": 30 }] }],
        } });
        let found = digests(Path::new("/home/kim/.codex/hooks.json"), &hooks);
        let expected = [
            ("pre_tool_use:0:0", "be1631cbf818b7d1a6e312408653a2b79b9b79a2bcadfddcb4aaeb0f9089e432"),
            ("stop:1:0", "3ddea20f8bc78019f14f3d75ee5029acf04115a3e67b62c3da7130f394d0a653"),
            ("session_end:0:0", "b5c137fcb04bcf30111eb365895f4ebcff603481af8f088b377f29728926ce21"),
        ];
        let expected = expected
            .map(|(key, digest)| (format!("/home/kim/.codex/hooks.json:{key}"), format!("sha256:{digest}")));
        assert_eq!(found, expected);
    }
}
