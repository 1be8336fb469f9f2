//! Settings of a client that turn all its hooks off, so that hooks which are installed do nothing.

use super::files;
use serde::Deserialize;
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// Settings of which each turns hooks off.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Their places: `features.hooks`.
    keys: Vec<String>,
    /// The value is one of these, or a list with one of them.
    values: Vec<Value>,
    /// The first of these files with the setting decides. `DIRECTORY/*.json` stands for the files there, the last name first.
    files: Vec<String>,
}

/// The first setting that turns hooks off, as the reason why the client runs none. `path`: where a file is that the recipe names.
pub fn reason(switches: &[Switch], path: impl Fn(&str) -> Option<PathBuf>) -> Option<String> {
    let settings = switches.iter().flat_map(|switch| switch.keys.iter().map(move |key| (switch, key)));
    let mut reasons = settings.filter_map(|(switch, key)| {
        let mut files = switch.files.iter().filter_map(|file| path(file)).flat_map(expanded);
        let (file, value) = files.find_map(|file| setting(&file, key).map(|value| (file, value)))?;
        let is_off = |off: &&Value| value == **off || value.as_array().is_some_and(|all| all.contains(off));
        let off = switch.values.iter().find(is_off)?;
        Some(format!("its hooks do not run, because of `{key}: {off}` in {}", file.display()))
    });
    reasons.next()
}

/// A file that cannot be read has no settings, as for the client.
fn setting(file: &Path, key: &str) -> Option<Value> {
    let text = files::read(file).ok()??;
    let settings: Value = match file.extension() == Some(OsStr::new("toml")) {
        true => toml::from_str(&text).ok()?,
        false => serde_json::from_str(&text).ok()?,
    };
    let value = key.split('.').try_fold(&settings, |settings, key| settings.get(key))?;
    Some(value.clone())
}

fn expanded(file: PathBuf) -> Vec<PathBuf> {
    let Some(directory) = file.parent().filter(|_| file.file_name() == Some(OsStr::new("*.json"))) else {
        return vec![file];
    };
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_read = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".json") && !name.starts_with('.')
    };
    let mut files: Vec<PathBuf> = entries.filter(is_read).collect();
    files.sort_by(|a, b| b.cmp(a));
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::setup::recipe::Recipe;

    /// The reason for a client with these files, on a machine of its own.
    fn reason_for(client: &str, files: &[(&str, &str)]) -> Option<String> {
        let machine = tempfile::tempdir().expect("a directory");
        let below = |file: &str| {
            Some(match (file.strip_prefix("~/"), file.strip_prefix('/')) {
                (Some(file), _) => machine.path().join("home").join(file),
                (_, Some(file)) => machine.path().join(file),
                _ => machine.path().join("repo").join(file),
            })
        };
        for (file, text) in files {
            let file = below(file).expect("a path");
            fs::create_dir_all(file.parent().expect("a directory")).expect("made");
            fs::write(file, text).expect("written");
        }
        let recipe = Recipe::built_in(client);
        let reason = reason(recipe.switches(), below)?;
        Some(reason.replace(&machine.path().display().to_string(), ""))
    }

    const MANAGED: &str = "/etc/claude-code/managed-settings.json";
    const LOCAL: &str = ".claude/settings.local.json";
    const PROJECT: &str = ".claude/settings.json";
    const OFF: &str = "{\"disableAllHooks\": true}";
    const ON: &str = "{\"disableAllHooks\": false}";

    #[test]
    fn settings_of_claude_code_turn_hooks_off() {
        let macos = "/Library/Application Support/ClaudeCode/managed-settings.json";
        for (file, shown) in [
            (MANAGED, MANAGED),
            (macos, macos),
            (LOCAL, "/repo/.claude/settings.local.json"),
            (PROJECT, "/repo/.claude/settings.json"),
            ("~/.claude/settings.json", "/home/.claude/settings.json"),
        ] {
            for key in ["disableAllHooks", "allowManagedHooksOnly", "strictPluginOnlyCustomization"] {
                let text = format!("{{\"{key}\": true}}");
                let why = format!("its hooks do not run, because of `{key}: true` in {shown}");
                assert_eq!(reason_for("claude", &[(file, &text)]), Some(why));
            }
        }
        for (text, is_off) in [
            (OFF, true),
            ("{\"strictPluginOnlyCustomization\": [\"mcp\", \"hooks\"]}", true),
            ("{\"strictPluginOnlyCustomization\": [\"mcp\"]}", false),
            (ON, false),
            ("{\"hooks\": {\"disableAllHooks\": true}}", false),
            // Not plain JSON: Claude Code reads nothing of it.
            ("{\"disableAllHooks\": true,}", false),
            ("[]", false),
            ("", false),
        ] {
            assert_eq!(reason_for("claude", &[(MANAGED, text)]).is_some(), is_off, "{text}");
        }
    }

    #[test]
    fn the_first_file_with_the_setting_decides() {
        let decides = |files: &[(&str, &str)], file: &str| {
            let why = reason_for("claude", files).unwrap_or_default();
            assert!(why.ends_with(file) && !why.is_empty(), "{files:?}: {why}");
        };
        assert_eq!(reason_for("claude", &[(LOCAL, ON), (PROJECT, OFF)]), None);
        decides(&[(LOCAL, OFF), (PROJECT, ON)], LOCAL);
        decides(&[(MANAGED, OFF), (LOCAL, ON)], MANAGED);
        decides(&[(MANAGED, "{}"), (PROJECT, OFF)], PROJECT);
        // The later part of the managed settings wins, and a hidden one does not count.
        let part = |name: &str| format!("/etc/claude-code/managed-settings.d/{name}");
        let (first, last, hidden) = (part("10-a.json"), part("20-b.json"), part(".30.json"));
        decides(&[(&first, ON), (&last, OFF), (&hidden, ON), (MANAGED, ON)], &last);
        assert_eq!(reason_for("claude", &[(&first, OFF), (&last, ON), (MANAGED, OFF)]), None);
        assert_eq!(reason_for("claude", &[(&hidden, OFF), (&part("notes.txt"), OFF)]), None);
    }

    #[test]
    fn settings_of_codex_turn_hooks_off() {
        let (requirements, user, project) =
            ("/etc/codex/requirements.toml", "~/.codex/config.toml", ".codex/config.toml");
        for file in [requirements, user, project] {
            for key in ["hooks", "codex_hooks"] {
                let off = format!("model = 'x'\n[features]\n{key} = false\n");
                let why = reason_for("codex", &[(file, &off)]).unwrap_or_else(|| panic!("{file}: {key}"));
                assert!(why.contains(&format!("`features.{key}: false` in /")), "{why}");
            }
        }
        let (on, off) = ("[features]\nhooks = true\n", "[features]\nhooks = false\n");
        assert!(reason_for("codex", &[(user, off), (project, on)]).is_some(), "a project may not be trusted");
        assert_eq!(reason_for("codex", &[(requirements, on), (user, off)]), None);
        assert!(reason_for("codex", &[(requirements, "allow_managed_hooks_only = true\n")]).is_some());
    }
}
