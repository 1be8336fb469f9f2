//! The claims of a run's trigger, stored with the run, so that a repeated poll can return them and settling knows them.

use super::trigger::{self, Trigger, Type};
use crate::{
    db::Tx,
    error::{Error, Result},
    ids::Token,
    lease::Hold,
    lease::delivery::redeliver,
    ops::{channel, inbox, mail, run, storm, task},
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Given {
    pub claims: Vec<String>,
    /// The claims that were settled together with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled: Option<Vec<String>>,
    /// The claims that were released.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<String>,
    /// The claims that the run no longer held.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// Digest of the settle request's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

impl Given {
    pub fn of(trigger: &Trigger) -> Self {
        Self { claims: trigger.claims.iter().map(|claim| claim.token.clone()).collect(), ..Self::default() }
    }

    pub fn read(text: Option<String>) -> Result<Self> {
        text.map_or(Ok(Self::default()), |text| serde_json::from_str(&text)).map_err(Error::internal)
    }

    pub fn text(&self) -> Result<String> {
        serde_json::to_string(self).map_err(Error::internal)
    }

    pub fn tokens(&self) -> Result<Vec<Token>> {
        self.claims.iter().map(|token| Token::check(token)).collect()
    }

    /// The reply for a settled run.
    pub fn into_reply(self, run: run::Run) -> run::settle::Settled {
        let settled = self.settled.unwrap_or_default();
        let elsewhere = [&settled, &self.back, &self.lost];
        let left = self.claims.iter().filter(|token| !elsewhere.iter().any(|list| list.contains(token)));
        let left = left.cloned().collect();
        run::settle::Settled { run, settled, back: self.back, left, lost: self.lost }
    }

    /// The trigger again, with the claims that the run still holds.
    pub async fn again(&self, tx: &mut Tx<'_>, kind: Type, run: &str) -> Result<Trigger> {
        let mut trigger = Trigger::new(kind, run);
        let (mut tasks, mut messages, mut readers) = (Vec::new(), Vec::new(), Vec::new());
        let mut letters = Vec::new();
        for token in self.tokens()? {
            let now = tx.now;
            let is_held = |hold: Option<&Hold>| {
                hold.is_some_and(|hold| hold.fence == token.fence && hold.is_alive(now))
            };
            let id = token.resource.id();
            match token.resource.noun() {
                "task" => {
                    let Some(id) = token.resource.task() else { continue };
                    let held = task::load(tx, &id).await?.filter(|task| is_held(task.hold()));
                    let Some(task) = held else { continue };
                    tasks.push((task.seq, token.clone()));
                    let view = task::full(tx, vec![task]).await?.remove(0);
                    trigger.claims.extend(view.claim.clone());
                    trigger.task = Some(view);
                }
                "message" => {
                    let Some(id) = mail::claimable::message(&token.resource) else { continue };
                    let held = mail::load(tx, id).await?.filter(|message| is_held(message.hold()));
                    if held.is_none() {
                        continue;
                    }
                    messages.push((id, token.clone()));
                    let message = mail::show::of(tx, id).await?;
                    trigger.claims.extend(message.claim.clone());
                    letters.push(message);
                }
                "mentions" => {
                    let (agent, channel) = channel::claimable::parts(id);
                    let held = channel::load(tx, agent, channel)
                        .await?
                        .filter(|reader| is_held(reader.hold.as_ref()));
                    let Some(reader) = held else { continue };
                    trigger.claims.extend(reader.hold.as_ref().map(|hold| hold.claim(&reader.resource())));
                    readers.push(reader);
                }
                // A poll claims nothing else.
                _ => {}
            }
        }
        let mut handed = Vec::new();
        if !tasks.is_empty() {
            handed.extend(redeliver(tx, &task::claimable::REDELIVERY, &tasks).await?);
        }
        if !messages.is_empty() {
            handed.extend(redeliver(tx, &mail::claimable::REDELIVERY, &messages).await?);
        }
        if !readers.is_empty() {
            let unread = match kind {
                Type::UnreadWakeup => channel::reader::Unread::Posts,
                _ => channel::reader::Unread::Mentions,
            };
            trigger.channels = channel::reader::given(tx, &readers, unread).await?;
            handed.extend(channel::again(tx, &readers).await?);
        }
        tx.notes.delivered = handed;
        match kind {
            Type::UnreadWakeup => {
                if let Some(message) = letters.first() {
                    trigger.wakeup = storm::Wakeup::again(tx, message).await?;
                }
            }
            Type::TasksFinished => trigger.tasks = trigger::finished_tasks(tx, letters.iter()).await?,
            _ => trigger.messages = letters.into_iter().map(inbox::Item::of).collect(),
        }
        trigger.count = match kind {
            Type::InboxMessage | Type::TasksFinished => Some(trigger.claims.len() as i64),
            Type::UnreadMentions => {
                Some(trigger.channels.iter().map(|given| given.mentions.len() as i64).sum())
            }
            _ => None,
        };
        Ok(trigger)
    }
}
