//! The prompt of a child, from a template per type of trigger. A user's own template replaces a built-in one.

use super::profile::fill;
use crate::{
    commands::poll::text,
    environment::config_home,
    output::{
        Terminal,
        streams::{self, QUOTE},
        untrusted,
    },
    trust::small_text,
};
use fencepost::{Clock, Code, Error, Result, agent::Trigger, agent::Type};
use std::{borrow::Cow, collections::HashMap, path::PathBuf};

const BUILT_IN: [(Type, &str); 8] = [
    (Type::TaskOffered, include_str!("prompts/task_offered.md")),
    (Type::TaskAssigned, include_str!("prompts/task_assigned.md")),
    (Type::InboxMessage, include_str!("prompts/inbox_message.md")),
    (Type::UnreadMentions, include_str!("prompts/unread_mentions.md")),
    (Type::UnreadWakeup, include_str!("prompts/unread_wakeup.md")),
    (Type::TasksFinished, include_str!("prompts/tasks_finished.md")),
    (Type::PoolTask, include_str!("prompts/pool_task.md")),
    (Type::PoolTasksAvailable, include_str!("prompts/pool_tasks_available.md")),
];

/// The templates of all types.
#[derive(Debug)]
pub struct Prompts(HashMap<Type, String>);

/// The values of a prompt's variables that are not in the trigger.
#[derive(Debug, Default)]
pub struct Facts<'f> {
    pub agent: &'f str,
    pub run: &'f str,
    pub tree: Option<&'f str>,
    pub branch: Option<&'f str>,
}

impl Prompts {
    /// Reads the templates, and refuses those with an unknown variable: better now than when a trigger arrives.
    pub fn load(directory: Option<PathBuf>) -> Result<Self> {
        if let Some(missing) = directory.as_ref().filter(|directory| !directory.is_dir()) {
            let message = format!("there is no directory `{}` for prompts", missing.display());
            return Err(Error::new(Code::Invalid, message));
        }
        let mut templates = HashMap::new();
        for (kind, _) in BUILT_IN {
            let (source, template) = find(kind, directory.as_ref())?;
            fill(&template, "{{", "}}", &variables(&Facts::default(), kind, None, "")).map_err(|e| {
                Error::new(Code::Invalid, format!("{source}: {}", e.message()))
                    .hint(e.hint_text().unwrap_or_default())
            })?;
            templates.insert(kind, template);
        }
        Ok(Self(templates))
    }

    pub fn of(&self, trigger: &Trigger, facts: &Facts<'_>) -> Result<String> {
        let template = self.0.get(&trigger.kind).map_or("{{trigger}}", String::as_str);
        let page = page(trigger)?;
        fill(template, "{{", "}}", &variables(facts, trigger.kind, Some(trigger), &page))
    }
}

/// The template of a type, for a user to copy.
pub fn template(kind: Type, directory: Option<&PathBuf>) -> Result<String> {
    find(kind, directory).map(|(_, template)| template)
}

/// A template and where it is from: the named directory, else the user's settings, else built in.
fn find(kind: Type, directory: Option<&PathBuf>) -> Result<(String, String)> {
    let name = format!("{}.md", kind.as_str());
    let own = config_home().map(|home| home.join("fence/prompts"));
    for file in [directory.cloned(), own].into_iter().flatten().map(|directory| directory.join(&name)) {
        match small_text(&file) {
            Ok(text) => return Ok((file.display().to_string(), text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => {
                return Err(Error::new(Code::Invalid, format!("`{}` cannot be read: {e}", file.display())));
            }
        }
    }
    let (_, text) = BUILT_IN.iter().find(|(built_in, _)| *built_in == kind).copied().unwrap_or(BUILT_IN[0]);
    Ok((name, text.to_owned()))
}

fn variables(
    facts: &Facts<'_>,
    kind: Type,
    trigger: Option<&Trigger>,
    page: &str,
) -> Vec<(&'static str, String)> {
    let task = trigger.and_then(|trigger| trigger.task.as_ref());
    let claims: Vec<&str> =
        trigger.map_or(Vec::new(), |trigger| trigger.claims.iter().map(|claim| &*claim.token).collect());
    let channels: Vec<&str> =
        trigger.map_or(Vec::new(), |trigger| trigger.channels.iter().map(|given| &*given.channel).collect());
    let branch_note = facts.branch.map_or(String::new(), |branch| {
        format!(", a git work tree of your own on branch {branch}; commit what you want to keep")
    });
    vec![
        ("agent", facts.agent.to_owned()),
        ("run", facts.run.to_owned()),
        ("type", kind.as_str().to_owned()),
        ("trigger", page.trim_end().to_owned()),
        ("task", task.map_or(String::new(), |task| task.id.clone())),
        ("attempt", task.map_or(String::new(), |task| task.attempts.to_string())),
        ("claims", claims.join(" ")),
        ("channel", channels.join(" ")),
        ("tree", facts.tree.unwrap_or_default().to_owned()),
        ("branch", facts.branch.unwrap_or_default().to_owned()),
        ("branch_note", branch_note),
    ]
}

/// The trigger as plain text: its claims, and then the work. Every line of the work is indented, whoever wrote it, so that no text of
/// others can pass for a line of the prompt.
fn page(trigger: &Trigger) -> Result<String> {
    let json = serde_json::to_string(trigger).map_err(Error::internal)?;
    let terminal = Terminal::plain(Clock::System.read());
    let work = match untrusted::shown_in_json(&json) {
        Cow::Borrowed(_) => text::about(trigger, &terminal),
        Cow::Owned(safe) => text::about(&serde_json::from_str(&safe).map_err(Error::internal)?, &terminal),
    };
    let claims = trigger.claims.iter().map(|claim| format!("claim: {}\n", claim.token));
    Ok(format!("{}\n{}", claims.collect::<String>(), framed(&streams::rendered(&work))))
}

fn framed(text: &str) -> String {
    let line = |line: &str| if line.is_empty() { String::new() } else { format!("{QUOTE}{line}") };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}
