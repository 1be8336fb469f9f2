//! A trigger as text: the work, and the commands to use next.

use super::super::{channel::text::posts, inbox::text as inbox};
use crate::output::{Terminal, tasks};
use fencepost::{
    agent::{Trigger, Type},
    channel::Mentions,
};

/// The first line is the type and the run. A line for each claim follows, and after an empty line the work. Untrusted text never
/// begins at the margin, so that a script can tell it from these lines.
pub fn trigger(trigger: &Trigger, agent: &str, terminal: &Terminal) -> String {
    let head = match trigger.kind {
        // This trigger goes to every worker, and has no run.
        Type::PoolTasksAvailable => trigger.kind.as_str().to_owned(),
        kind => format!("{} {}", kind.as_str(), trigger.run),
    };
    let mut parts = vec![terminal.bold(&head)];
    parts.extend(trigger.claims.iter().map(|claim| format!("{} {}", terminal.dim("claim:"), claim.token)));
    if let Some(first) = trigger.claims.iter().map(|claim| claim.expires_at).min() {
        parts.push(format!("{} {}", terminal.dim("held"), terminal.until(first)));
    }
    let about = about(trigger, terminal);
    parts.extend([about].into_iter().filter(|about| !about.is_empty()).map(|about| format!("\n{about}")));
    parts.push(format!("\n{} {}", terminal.dim("next:"), next(trigger, agent)));
    parts.join("\n")
}

/// The work of a trigger, without its claims and the commands to use next.
pub fn about(trigger: &Trigger, terminal: &Terminal) -> String {
    let mut parts: Vec<String> = trigger.task.iter().map(|task| tasks::page(task, terminal)).collect();
    parts.extend(trigger.messages.iter().map(|item| inbox::page(item, terminal)));
    parts.extend(trigger.channels.iter().map(|given| mentions(trigger.kind, given, terminal)));
    if !trigger.tasks.is_empty() {
        parts.push(tasks::tasks(&trigger.tasks, terminal));
    }
    if let (Type::PoolTasksAvailable, Some(count)) = (trigger.kind, trigger.count) {
        parts.push(format!("{count} in the pool; nothing is claimed"));
    }
    parts.iter().map(|part| part.trim_end()).collect::<Vec<_>>().join("\n\n")
}

/// `general: posts 3 to 9, mentioned in 4, 9`, and those posts; for a wake-up all posts of others.
fn mentions(kind: Type, given: &Mentions, terminal: &Terminal) -> String {
    let numbers: Vec<String> = given.mentions.iter().map(ToString::to_string).collect();
    let mentioned = match numbers.as_slice() {
        [] => String::new(),
        numbers => format!(", mentioned in {}", numbers.join(", ")),
    };
    let head = format!("{}: posts {} to {}{mentioned}", given.channel, given.from, given.to);
    let mut parts = vec![head, posts(&given.posts, terminal)];
    let is_cut = match kind {
        Type::UnreadWakeup => given.posts.last().is_none_or(|last| last.n < given.to),
        _ => given.posts.len() < given.mentions.len(),
    };
    if is_cut {
        parts.push(terminal.and_more(&format!("fence channel read {}", given.channel)));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}

/// The commands for each type of trigger. `settle` ends every type.
fn next(trigger: &Trigger, agent: &str) -> String {
    let run = &trigger.run;
    let tokens: Vec<&str> = trigger.claims.iter().map(|claim| claim.token.as_str()).collect();
    let settle = format!("fence settle {run}");
    match trigger.kind {
        Type::TaskOffered => {
            let task = trigger.task.as_ref().map_or("", |task| &task.id);
            let who = format!("--agent {agent} --run {run}");
            format!(
                "fence accept {task} {who}\n  or  fence reject {task} --reason TEXT {who}\n  then  {settle}"
            )
        }
        Type::TaskAssigned | Type::PoolTask => format!(
            "{settle} --output TEXT\n  or  {settle} --failed REASON\n  meanwhile  fence progress TEXT {}",
            tokens.join(" ")
        ),
        Type::InboxMessage => {
            let respond = each(&tokens, |token| format!("fence inbox respond {token} TEXT"));
            let token = only_or(&tokens, "TOKEN");
            format!(
                "{respond}\n  or  fence inbox delegate {token} --to AGENT\n  then  {settle}  # the rest is read"
            )
        }
        Type::UnreadMentions | Type::UnreadWakeup => {
            let channels: Vec<&str> = trigger.channels.iter().map(|given| given.channel.as_str()).collect();
            let post =
                each(&channels, |channel| format!("fence channel post {channel} TEXT --agent {agent}"));
            let channel = only_or(&channels, "CHANNEL");
            format!(
                "{post}\n  then  {settle}  # now they are read\n  meanwhile  fence channel read {channel} --agent {agent} --run {run}  # marks nothing"
            )
        }
        Type::TasksFinished => settle,
        Type::PoolTasksAvailable => format!("fence poll --agent {agent}, or fence claim --agent {agent}"),
    }
}

/// One line per name.
fn each(names: &[&str], say: impl Fn(&str) -> String) -> String {
    names.iter().map(|name| say(name)).collect::<Vec<_>>().join("\n  and  ")
}

/// The only name, or a placeholder for several.
fn only_or<'a>(names: &[&'a str], any: &'a str) -> &'a str {
    if let [one] = names { one } else { any }
}
