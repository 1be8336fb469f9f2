//! The hooks of agents' clients: are they ours, do ours block a guarded command, and does the client run them?
//!
//! The settings of a project come with a clone, so nothing that stands in them is run: a hook there is compared with the one that
//! this fence writes, and that one is run.

use super::super::setup::{self, Installed, OwnHook, Scope, State};
use super::{Finding, ok, problem, warning};
use crate::context::Context;
use fencepost::{Code, Error, Result, files};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::{
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

/// The longest settings file that is read.
const LARGEST: u64 = 64 * 1024 * 1024;

/// Our own hook gives up after 22 s, and clients after 60 s. Tests run on slow machines.
const LIMIT: Duration = Duration::from_secs(if cfg!(debug_assertions) { 600 } else { 60 });

/// One line per hook that guards commands, and one per file that is not as this version would write it or that the client ignores.
pub async fn findings(context: &Context) -> Vec<Finding> {
    let installed = match setup::installed(context) {
        Ok(installed) => installed,
        Err(e) => return vec![problem("clients", &e)],
    };
    let mut findings = Vec::new();
    for place in installed.iter().filter(|place| place.state != State::Missing) {
        let scope = place.scope.as_str();
        if place.files.iter().any(|file| matches!(file.state, State::Stale | State::Missing)) {
            let message =
                format!("the files of recipe {} ({scope}) are not as this fence writes them", place.recipe);
            findings.push(warning("clients", message, &anew(place)));
        }
        for file in &place.files {
            let hint = match file.state {
                State::Ignored => "no push is blocked until it is changed",
                _ => {
                    "hooks that call `fence` by its name are the same for everybody: put fence on PATH before fence setup"
                }
            };
            findings
                .extend(file.why.iter().map(|why| warning("clients", format!("{}: {why}", file.path), hint)));
        }
        if !place.hooks.iter().any(|hook| hook.ours) {
            continue;
        }
        findings.extend(guarded(place).await);
        let codex = place.hooks.iter().find(|hook| hook.ours && hook.client == "codex");
        findings.extend(codex.map(|hook| trusted(Path::new(&hook.file), place)));
    }
    findings
}

/// The command that repairs the files of a recipe.
fn anew(place: &Installed) -> String {
    format!("fence setup {} --{}", place.recipe, place.scope.as_str())
}

/// Are the hooks before tools those of this version, and does each block a push if the fleet cannot be reached?
async fn guarded(place: &Installed) -> Option<Finding> {
    let first = place.guards.first()?;
    let (client, file) = (&first.client, &first.file);
    if place.files.iter().any(|one| one.path == *file && one.state == State::Ignored) {
        return None;
    }
    let event = json!({
        "hook_event_name": "PreToolUse", "session_id": "doctor", "tool_name": "Bash", "tool_input": { "command": "git push" },
    });
    for hook in &place.guards {
        let wrong = match hook.is_there {
            false => format!(
                "the hook of {client} in {file} is not the one that this fence writes, and was not run"
            ),
            true => match fire(&hook.command, &event, LIMIT).await {
                Ok((2, said)) if !said.is_empty() => continue,
                Ok((code, _)) => {
                    format!("the hook of {client} in {file} does not block a push (exit {code})")
                }
                Err(e) => e.message().to_owned(),
            },
        };
        let hint = format!("{} writes it anew", anew(place));
        return Some(problem("clients", &Error::new(Code::Invalid, wrong).hint(hint)));
    }
    let message = format!("the hook of {client} in {file} blocks a push if the fleet cannot be reached");
    Some(ok("clients", message))
}

/// The exit code and standard error of a hook, with nothing in its environment that it could give away. Only for lines that this
/// program made.
async fn fire(line: &str, event: &Value, limit: Duration) -> Result<(i32, String)> {
    let failed = |e: std::io::Error| Error::unavailable(format!("the hook cannot be run: {e}"));
    let mut command = Command::new("sh");
    command.args(["-c", line]).env_clear();
    command.envs(["PATH", "HOME"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    // Nobody listens there.
    command.env("FENCE_URL", "http://127.0.0.1:9").current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(command).spawn().map_err(failed)?;
    let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let (mut stdin, mut stderr) = (child.stdin.take(), child.stderr.take());
    let run = async {
        if let Some(mut stdin) = stdin.take() {
            // It may end without reading.
            let _ = stdin.write_all(event.to_string().as_bytes()).await;
        }
        let mut said = Vec::new();
        if let Some(stderr) = &mut stderr {
            stderr.read_to_end(&mut said).await?;
        }
        Ok((child.wait().await?, said))
    };
    let Ok(ended) = timeout(limit, run).await else {
        // The leader was not waited for, so its id is still that of the group.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait().await;
        return Err(Error::unavailable(format!("the hook did not end within {limit:?}, and was killed")));
    };
    let (status, said) = ended.map_err(failed)?;
    Ok((status.code().unwrap_or(-1), String::from_utf8_lossy(&said).trim().to_owned()))
}

/// Codex skips a hook that the user has not trusted, and says nothing. It remembers a digest of each trusted hook.
fn trusted(file: &Path, place: &Installed) -> Finding {
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
    let is_ours = |line: &str| OwnHook::parse(line).is_some();
    let skipped: Vec<String> = digests(&key, &hooks, is_ours)
        .into_iter()
        .filter(|(key, digest)| !is_trusted(&config, key, digest))
        .filter_map(|(key, _)| Some(key.rsplit(':').nth(2)?.to_owned()))
        .collect();
    if !skipped.is_empty() {
        return problem(format!(
            "Codex skips hooks of {} that you have not trusted, or turned off: {}",
            file.display(),
            skipped.join(", ")
        ));
    }
    let directory = key.parent().and_then(Path::parent).unwrap_or(&key).display().to_string();
    let trust =
        config.get("projects").and_then(|all| all.get(&directory)).and_then(|one| one.get("trust_level"));
    if place.scope == Scope::Project && trust.and_then(toml::Value::as_str) != Some("trusted") {
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

fn is_trusted(config: &toml::Table, key: &str, digest: &str) -> bool {
    let state = config.get("hooks").and_then(|hooks| hooks.get("state")?.get(key));
    let Some(state) = state else { return false };
    let is_on = state.get("enabled").and_then(toml::Value::as_bool) != Some(false);
    is_on && state.get("trusted_hash").and_then(toml::Value::as_str) == Some(digest)
}

/// The keys of our hooks in a file, with the digests by which Codex 0.169 knows them.
fn digests(file: &Path, hooks: &Value, is_ours: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (event, groups) in hooks.get("hooks").and_then(Value::as_object).into_iter().flatten() {
        let name = snake(event);
        for (group, entry) in groups.as_array().into_iter().flatten().enumerate() {
            for (handler, hook) in entry["hooks"].as_array().into_iter().flatten().enumerate() {
                if !hook["command"].as_str().is_some_and(&is_ours) {
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
        let found =
            digests(Path::new("/home/kim/.codex/hooks.json"), &hooks, |line| line.starts_with("fence"));
        let expected = [
            ("pre_tool_use:0:0", "be1631cbf818b7d1a6e312408653a2b79b9b79a2bcadfddcb4aaeb0f9089e432"),
            ("stop:1:0", "3ddea20f8bc78019f14f3d75ee5029acf04115a3e67b62c3da7130f394d0a653"),
            ("session_end:0:0", "b5c137fcb04bcf30111eb365895f4ebcff603481af8f088b377f29728926ce21"),
        ];
        let expected = expected
            .map(|(key, digest)| (format!("/home/kim/.codex/hooks.json:{key}"), format!("sha256:{digest}")));
        assert_eq!(found, expected);
        let (key, digest) = &found[0];
        let config = |rest: &str| -> toml::Table {
            let text = format!("[hooks.state.{}]\ntrusted_hash = {}\n{rest}", json!(key), json!(digest));
            text.parse().expect("TOML")
        };
        assert!(is_trusted(&config(""), key, digest) && is_trusted(&config("enabled = true"), key, digest));
        assert!(!is_trusted(&config("enabled = false"), key, digest), "turned off in /hooks");
        assert!(!is_trusted(&config(""), key, "another") && !is_trusted(&config(""), "another", digest));
    }

    /// The time-out must run out here; a machine that is too slow to start `sleep` before it has less to kill.
    #[tokio::test]
    async fn a_hook_that_hangs_is_killed_with_all_its_processes() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(made.success());
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
        let reader = rustix::fs::open(&pipe, flags, rustix::fs::Mode::empty()).expect("opened");
        // A process that ignores TERM, and a child of it; both hold the pipe open.
        let line = format!("trap '' TERM; exec >{0}; sleep 1000 >{0} & sleep 1000", pipe.display());
        let ended = fire(&line, &json!({}), Duration::from_secs(2)).await;
        assert!(ended.expect_err("it hangs").message().contains("did not end within 2s, and was killed"));
        // The end of the pipe: nobody can write to it any more.
        let mut byte = [0];
        let closed = async {
            while rustix::io::read(&reader, &mut byte).is_err() {
                tokio::task::yield_now().await;
            }
        };
        timeout(Duration::from_secs(300), closed).await.expect("all processes are gone");
    }

    #[tokio::test]
    async fn a_hook_is_run_without_our_environment() {
        let (code, said) = fire("env >&2; pwd >&2; exit 7", &json!({}), LIMIT).await.expect("run");
        let names: Vec<_> = said.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        let known = ["PATH", "HOME", "FENCE_URL", "PWD", "SHLVL", "_", "OLDPWD"];
        assert!(names.iter().all(|name| known.contains(name)), "{said}");
        assert_eq!((code, said.lines().last()), (7, Some("/")));
    }
}
