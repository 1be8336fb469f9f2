//! After a tool: the run is renewed, and the agent is told once what concerns it: a lost claim, a cancelled task, a note, mail.

use super::{Call, quoted, refresh::refresh, reply::Reply};
use crate::session::{Fleet, Locked, Lost, SILENT_FOR, Session};
use fencepost::{Millis, Result, channel, inbox, run, task};

/// A run is renewed at most this often.
const RENEWED_EVERY: Millis = Millis::seconds(20);

impl Call<'_> {
    pub(super) async fn post_tool_use(&self) -> Result<Reply> {
        self.news().await
    }

    /// Looks after the runs of the event, and tells their news.
    pub(super) async fn news(&self) -> Result<Reply> {
        let now = self.context.terminal.now();
        let mut told = Vec::new();
        for name in self.runs() {
            let mut locked = Locked::open(&name, self.deadline);
            if locked.session.is_silent(now) {
                continue;
            }
            let news = async { self.look(&self.fleet().await?, &name, &mut locked.session).await };
            match news.await {
                Ok(news) => {
                    // The session knows the claims of its subagents, too.
                    told.extend(news.into_iter().filter(|news| !told.contains(news)).collect::<Vec<_>>());
                    locked.session.silent_until = None;
                }
                // A fleet that does not answer must not delay every tool.
                Err(error) if error.is_transient() => {
                    locked.session.silent_until = Some(now.plus(SILENT_FOR))
                }
                Err(_) => {}
            }
            // Without the file the next hook looks again, and may tell it twice.
            let _ = locked.save(now);
        }
        Ok(match told.is_empty() {
            true => Reply::Silent,
            false => self.tell(format!("fence: {}", told.join("\n"))),
        })
    }

    /// Looks after one run, and returns the news for its agent.
    async fn look(&self, fleet: &Fleet, name: &str, session: &mut Session) -> Result<Vec<String>> {
        let now = self.context.terminal.now();
        let here = self.context.location()?.absolute_url();
        let refreshed = refresh(fleet, &here, name, session, now).await?;
        let claims = refreshed.claims;
        let mut told: Vec<String> = refreshed.lost.iter().map(|lost| self.told_of(lost)).collect();
        // The session works in another fleet, and only this tool ran here.
        if session.is_elsewhere(&here) {
            return Ok(told);
        }
        if !claims.is_empty() {
            let due = session.renewed_at.is_none_or(|at| now.since(at) >= RENEWED_EVERY || now < at);
            if due {
                let renewed = fleet.call(run::Renew { run: name.to_owned(), ttl_ms: None }).await?;
                session.renew(&here, name, renewed.run.expires_at);
                session.renewed_at = Some(now);
            }
            if session.is_waiting {
                fleet.call(run::Wait { run: name.to_owned(), waiting: false }).await?;
            }
        }
        session.is_waiting = false;
        let own = session.held.iter().filter(|held| held.fleet == here);
        let tokens = own.map(|held| held.token.as_str());
        let tasks: Vec<String> = tokens.filter_map(task_of).map(str::to_owned).collect();
        session.notes.retain(|id, _| tasks.contains(id));
        for id in tasks {
            told.extend(self.new_notes(fleet, &id, session).await?);
        }
        if let Some(agent) = self.context.agent() {
            told.extend(mail(fleet, &agent, session).await?);
        }
        Ok(told)
    }

    fn told_of(&self, lost: &Lost) -> String {
        let ack = if self.hook.mcp { "the tool `finish` with how=acknowledge" } else { "fence ack" };
        format!(
            "you lost claim {}: {}. Stop this work and push nothing. Acknowledge it ({ack}) or claim something else before you write or \
             run anything.",
            lost.token,
            lost.describe()
        )
    }

    /// Notes since the last look. Those that were there when the task was claimed came with the claim.
    async fn new_notes(&self, fleet: &Fleet, id: &str, session: &mut Session) -> Result<Vec<String>> {
        let task = fleet.call(task::Show { task: id.to_owned() }).await?.task;
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

/// The task of a token.
fn task_of(token: &str) -> Option<&str> {
    token.strip_prefix("task/")?.split('@').next()
}

/// Messages and mentions since the last look.
async fn mail(fleet: &Fleet, agent: &str, session: &mut Session) -> Result<Option<String>> {
    let (last, mentioned) = session.mail.unwrap_or_default();
    let unread = inbox::List {
        agent: agent.to_owned(),
        status: Some(inbox::Status::Unread),
        after: Some(last),
        ..inbox::List::default()
    };
    let items = fleet.call(unread).await?.items;
    let channels = fleet.call(channel::Unread { agent: agent.to_owned() }).await?.channels;
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
