//! After a tool: the run is renewed, and the agent is told once what concerns it: a lost claim, a cancelled task, a note, mail.

use super::{
    Call,
    reply::Reply,
    session::{Locked, Session, quoted},
    soon,
};
use fencepost::{Millis, Result, channel, claim, claim::Verdict, inbox, run, task};
use fencepost_client::Connection;

/// A run is renewed at most this often.
const RENEWED_EVERY: Millis = Millis::seconds(20);

impl Call<'_> {
    pub(super) async fn post_tool_use(&self) -> Result<Reply> {
        let fleet = self.fleet().await?;
        let mut told = Vec::new();
        for name in self.runs() {
            let mut locked = Locked::open(&name)?;
            told.extend(self.look(&fleet, &name, &mut locked.session).await?);
            locked.save(self.context.terminal.now())?;
        }
        Ok(match told.is_empty() {
            true => Reply::Silent,
            false => self.tell(format!("fence: {}", told.join("\n"))),
        })
    }

    /// Looks after one run, and returns the news for its agent.
    async fn look(&self, fleet: &Connection, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let now = self.context.terminal.now();
        let claims = super::claims(fleet, &[name.to_owned()]).await?;
        let mut told = Vec::new();
        for token in &session.held {
            if !claims.iter().any(|claim| claim.token == *token) {
                let guarded = soon(fleet.call(claim::Guard::new(token))).await?;
                told.extend(guarded.ended_by.is_none().then(|| lost(token, guarded.reason)));
            }
        }
        if !claims.is_empty() {
            session.fleet = Some(self.context.location()?.absolute_url());
            let due = session.renewed_at.is_none_or(|at| now.since(at) >= RENEWED_EVERY || now < at);
            if due {
                soon(fleet.call(run::Renew { run: name.to_owned(), ttl_ms: None })).await?;
                session.renewed_at = Some(now);
            }
            if session.is_waiting {
                soon(fleet.call(run::Wait { run: name.to_owned(), waiting: false })).await?;
            }
        }
        session.is_waiting = false;
        session.notes.retain(|id, _| claims.iter().any(|claim| claim.resource == format!("task/{id}")));
        for id in claims.iter().filter_map(|claim| claim.resource.strip_prefix("task/")) {
            told.extend(self.new_notes(fleet, id, session).await?);
        }
        if let Some(agent) = self.context.agent() {
            told.extend(mail(fleet, &agent, session).await?);
        }
        session.held = claims.into_iter().map(|claim| claim.token).collect();
        Ok(told)
    }

    /// Notes since the last look. Those that were there when the task was claimed came with the claim.
    async fn new_notes(&self, fleet: &Connection, id: &str, session: &mut Session) -> Result<Vec<String>> {
        let task = soon(fleet.call(task::Show { task: id.to_owned() })).await?.task;
        let known = session.notes.insert(id.to_owned(), task.notes.len()).unwrap_or(task.notes.len());
        let new = task.notes.iter().skip(known);
        let own = self.context.agent();
        let of_others = new.filter(|note| note.agent.is_none() || note.agent != own);
        Ok(of_others
            .map(|note| {
                let by = note.agent.as_ref().map_or(String::new(), |agent| format!(" by agent {agent}"));
                format!("a new note on {id}{by}, in somebody else's words: {}", quoted(&note.text))
            })
            .collect())
    }
}

fn lost(token: &str, reason: Verdict) -> String {
    let stop = "Stop this work and push nothing; claim something else.";
    match reason {
        Verdict::Cancelled => format!("the task of claim {token} was cancelled. {stop}"),
        Verdict::AlreadyFinished => format!("claim {token} is over: the task is already finished. {stop}"),
        _ => format!("claim {token} is over, and somebody else may have the task. {stop}"),
    }
}

/// Messages and mentions since the last look.
async fn mail(fleet: &Connection, agent: &str, session: &mut Session) -> Result<Option<String>> {
    let (last, mentioned) = session.mail.unwrap_or_default();
    let unread = inbox::List {
        agent: agent.to_owned(),
        status: Some(inbox::Status::Unread),
        after: Some(last),
        ..inbox::List::default()
    };
    let items = soon(fleet.call(unread)).await?.items;
    let channels = soon(fleet.call(channel::Unread { agent: agent.to_owned() })).await?.channels;
    let mentions: i64 = channels.iter().map(|channel| channel.mentions).sum();
    session.mail = Some((items.last().map_or(last, |item| item.id), mentions));
    let mut parts = Vec::new();
    if !items.is_empty() {
        parts.push(format!("{} new in the inbox", items.len()));
    }
    if mentions > mentioned {
        parts.push(format!("{} new mentions", mentions - mentioned));
    }
    Ok((!parts.is_empty()).then(|| {
        format!(
            "mail for agent {agent}: {}. fence poll --agent {agent} takes it when your task is done.",
            parts.join(", ")
        )
    }))
}
