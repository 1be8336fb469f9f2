//! Effects in words.

use super::kept;
use crate::output::{
    Terminal,
    table::{Cell, Table},
    terminal::state,
    untrusted::BREAK,
};
use fencepost::once::{Effect, Output, Source, Status, list::Effects};

pub fn list(effects: &Effects, terminal: &Terminal) -> String {
    let Some(last) = effects.effects.last() else { return "no effects".into() };
    let mut table = Table::new(&["KEY", "STATUS", "EXIT", "BEGUN", "COMMAND"]).headed();
    for effect in &effects.effects {
        table.row(vec![
            effect.key.as_str().into(),
            Cell::state(effect.status.as_str()),
            effect.exit_code.map_or(String::new(), |code| code.to_string()).into(),
            terminal.when(effect.begun_at).into(),
            effect.command.as_str().into(),
        ]);
    }
    let more = effects.more.then(|| {
        let next = format!("fence once --list --start-after {}", last.key);
        format!("\n{}", terminal.and_more(&next))
    });
    table.render(terminal) + &more.unwrap_or_default()
}

pub fn page(effect: &Effect, terminal: &Terminal) -> String {
    let status = effect.status.as_str();
    let mut lines =
        vec![format!("{}  {}", effect.key, terminal.paint(state(status), &status.replace('_', " ")))];
    lines.push(format!("command: {}", effect.command));
    if effect.status != Status::Unused {
        let agent = effect.agent.as_ref().map_or(String::new(), |agent| format!(" (agent {agent})"));
        lines.push(format!("begun: {} by {}{agent}", terminal.when(effect.begun_at), effect.begun_by));
    }
    if let Some(claim) = &effect.claim {
        lines.push(format!("held by {} until {}", claim.run, terminal.when(claim.expires_at)));
    }
    if let Some(code) = effect.exit_code.filter(|_| effect.source == Some(Source::Command)) {
        lines.push(format!("exit code: {code}"));
    }
    match effect.source {
        Some(Source::Check) => lines.push("a check found that it happened".into()),
        Some(Source::Person) if effect.status == Status::Succeeded => {
            lines.push("somebody found that it happened".into());
        }
        Some(Source::Person) => lines.push("somebody found that it did not happen".into()),
        Some(Source::Command) | None => {}
    }
    lines.extend(effect.note.iter().map(|note| format!("note: {note}")));
    lines.extend(effect.reason.iter().map(|reason| format!("in doubt: {reason}")));
    for (name, output) in [("output", &effect.stdout), ("error output", &effect.stderr)] {
        lines.extend(output.iter().map(|output| format!("{name}: {}", shown(output))));
    }
    if effect.status == Status::InDoubt {
        let key = &effect.key;
        lines.push(format!(
            "hint: find out whether it happened, then fence once {key} --happened or --not-happened"
        ));
    }
    lines.join("\n")
}

/// A text was made safe to show before.
fn shown(output: &Output) -> String {
    let cut = if output.cut { " (cut)" } else { "" };
    match output.base64 {
        true => format!("{} bytes that are no text{cut}", kept::bytes(output).len()),
        false => format!("{}{cut}", output.text.trim_end_matches(|c: char| c.is_whitespace() || c == BREAK)),
    }
}
