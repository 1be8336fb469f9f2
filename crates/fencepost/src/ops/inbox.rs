//! Inboxes: messages to an agent from outside. An inbox is a mailbox (`inbox/AGENT`) with its own status words:
//! `unread` is pending; `read`, `responded` and `delegated` are processed with that outcome.

use crate::{
    clock::Time,
    db::{Batch, Stmt, Tx},
    engine::op::verbs,
    error::{Code, Error, Result},
    ids::Token,
    json::Json,
    lease::{Under, hold::require},
    limits::{NAME_MAX, PAYLOAD_MAX, TEXT_MAX, check},
    log::Event,
    ops::mail::{self, Message},
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

verbs![send::Send, list::List, read::Read, respond::Respond, delegate::Delegate];
pub(crate) mod outbox;

pub use outbox::Outgoing;

pub(crate) fn mailbox(agent: &str) -> String {
    format!("inbox/{agent}")
}

/// The content of a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Content {
    /// `slack`, `github`, `email`, `api`, …
    pub source: String,
    pub text: String,
    /// `message`, `issues.opened`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The sender, as given by the source or the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
    /// The agent that called `inbox/send`, taken from its key, or without a key from its process. None if the message
    /// came from outside, or from an operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_by: Option<String>,
    /// Such as `acme/api`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// The sender is a program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bot: bool,
    /// The rule or words that brought it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    /// Other data from the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

impl Content {
    /// Reads a payload. A payload of another form was pushed to the mailbox directly: its JSON is the text.
    pub(crate) fn of(payload: &Json) -> Self {
        let mail = || Content { source: "mail".into(), text: payload.text().to_owned(), ..Self::default() };
        payload.read().unwrap_or_else(|_| mail())
    }

    /// `at` is the content's position in the request.
    pub(crate) fn check(&self, at: &str) -> Result<()> {
        let field = |name: &str| format!("{at}{name}");
        check::plain_name(&field("source"), &self.source)?;
        check::line(&field("text"), &self.text, TEXT_MAX * 16)?;
        for (name, value) in [
            ("event", &self.event),
            ("channel", &self.channel),
            ("thread", &self.thread),
            ("sender", &self.sender),
            ("repository", &self.repository),
            ("matched", &self.matched),
        ] {
            check::optional_text(&field(name), value.as_deref(), NAME_MAX * 8)?;
        }
        if self.data.is_none() {
            return Ok(());
        }
        // The limit applies to the whole payload.
        check::json(&field("data"), Json::of(self)?.text(), PAYLOAD_MAX)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Unread,
    Processing,
    Read,
    Responded,
    Delegated,
    /// No attempt is left, or it was given up; see `failure_reason`.
    Failed,
}

impl Status {
    pub const ALL: [Status; 6] = [
        Status::Unread,
        Status::Processing,
        Status::Read,
        Status::Responded,
        Status::Delegated,
        Status::Failed,
    ];
    pub fn as_str(self) -> &'static str {
        match self {
            Status::Unread => "unread",
            Status::Processing => "processing",
            Status::Read => "read",
            Status::Responded => "responded",
            Status::Delegated => "delegated",
            Status::Failed => "failed",
        }
    }
    pub(crate) fn of(status: mail::Status, outcome: Option<&str>) -> Self {
        match (status, outcome) {
            (mail::Status::Pending | mail::Status::Held, _) => Status::Unread,
            (mail::Status::Processing, _) => Status::Processing,
            (mail::Status::Processed, Some("responded")) => Status::Responded,
            (mail::Status::Processed, Some("delegated")) => Status::Delegated,
            (mail::Status::Processed, _) => Status::Read,
            (mail::Status::Failed, _) => Status::Failed,
        }
    }
}

/// A message in an inbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Item {
    pub id: i64,
    pub agent: String,
    pub status: Status,
    /// The content, as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// The answer, or the task that the message was delegated to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<serde_json::Value>,
    pub attempts: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_reason: Option<String>,
    /// The time of the next attempt after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// The current claim, while a run holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<crate::lease::Claim>,
    /// Its last holder's lease has expired, and expiry has not written that yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lapsed: bool,
    pub created_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

impl Item {
    pub(crate) fn of(message: Message) -> Self {
        let status = Status::of(message.status, message.outcome.as_deref());
        Self {
            id: message.id,
            agent: message.mailbox.strip_prefix("inbox/").unwrap_or_default().to_owned(),
            status,
            content: message.payload.as_ref().map(Content::of),
            response: message.outputs.first().and_then(|output| output.read().ok()),
            attempts: message.attempts,
            failure_reason: message.failure_reason,
            retry_at: message.delayed_until,
            claim: message.claim,
            lapsed: message.lapsed,
            created_at: message.created_at,
            finished_at: message.finished_at,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Handled {
    pub item: Item,
}

/// Refuses unless the token holds the message or, without a token, the caller acts for its agent and no run holds it.
pub(crate) fn is_open(tx: &Tx<'_>, found: &mail::Record, token: Option<&Token>) -> Result<()> {
    let id = found.id;
    if let Some(token) = token {
        return require(Some(&found.claim_state()), token, tx.now).map(drop);
    }
    let agent = found.mailbox.strip_prefix("inbox/").ok_or_else(|| mail::not_found(id))?;
    tx.caller.acting_as("agent", Some(agent))?;
    is_free(tx, found)
}

fn is_free(tx: &Tx<'_>, found: &mail::Record) -> Result<()> {
    let id = found.id;
    if let Some(hold) = found.hold().filter(|hold| hold.is_alive(tx.now)) {
        let message = format!("message {id} is held by {}", hold.describe());
        return Err(Error::new(Code::AlreadyClaimed, message)
            .with("holder", &hold.run)
            .hint("only its holder may finish it: pass its token"));
    }
    if found.phase.is_finished() {
        return Err(Error::new(Code::AlreadyFinished, format!("message {id} was already handled")));
    }
    Ok(())
}

/// Completes a message: under its token, or by its number if it is unread.
pub(crate) async fn handle(
    tx: &mut Tx<'_>,
    which: &str,
    outcome: &'static str,
    output: Option<Json>,
) -> Result<Handled> {
    let done = |token: String| mail::Done {
        token,
        outputs: output.clone().into_iter().collect(),
        outcome: Some(outcome.into()),
    };
    let id = match which.parse::<i64>() {
        Ok(id) => id,
        Err(_) => {
            let token = Token::check(which)?;
            let Some(id) = mail::claimable::message(&token.resource) else {
                return Err(Error::invalid("message", "is neither a number nor a message's token"));
            };
            mail::done_many::complete(tx, &[done(which.into())])
                .await?
                .pop()
                .ok_or_else(|| Error::internal("nothing was completed"))??;
            return show(tx, id).await;
        }
    };
    check::range("message", id, 1, i64::MAX)?;
    let found = mail::record::load_locked(tx, &[id]).await?.remove(&id).ok_or_else(|| mail::not_found(id))?;
    let open = is_open(tx, &found, None);
    if found.phase.is_finished() {
        let handled = show(tx, id).await?;
        let response = output.as_ref().map(Json::read::<serde_json::Value>).transpose()?;
        let same = found.status() == mail::Status::Processed && found.outcome.as_deref() == Some(outcome);
        if same
            && handled.item.response == response
            && open.as_ref().is_err_and(|e| e.code() != Code::Forbidden)
        {
            return Ok(handled);
        }
    }
    open?;
    finish_unheld(tx, found, outcome, output).await?;
    show(tx, id).await
}

/// Completes a message that no run holds. The caller holds its row lock.
pub(crate) async fn finish_unheld(
    tx: &mut Tx<'_>,
    found: mail::Record,
    outcome: &'static str,
    output: Option<Json>,
) -> Result<()> {
    is_free(tx, &found)?;
    let id = found.id;
    let mut after = mail::Record {
        outcome: Some(outcome.into()),
        lapsed: 0,
        delayed_until: None,
        updated_at: tx.now,
        ..found.clone()
    };
    after.end_claim("lapse", &[], mail::Phase::Processed(tx.now));
    // An expired claim may be left on it; its holder did not complete it.
    let event = Event { run: None, agent: None, fence: None, ..after.event("message.completed", &found) };
    mail::record::save(tx, &[(found.clone(), after)], Under::NoClaim, vec![event]).await?;
    let mut batch = Batch::new();
    if !found.mailbox.starts_with("inbox/") {
        batch.add(Stmt::write("update message_doc set payload = null where message = ?1", params![id]));
    }
    if let Some(output) = &output {
        batch.add(Stmt::write(
            "insert into message_output(message, n, fence, output) values (?1, 0, ?2, ?3)",
            params![id, found.fence, output.text()],
        ));
    }
    tx.send(batch).await?;
    Ok(())
}

async fn show(tx: &mut Tx<'_>, id: i64) -> Result<Handled> {
    let shown = mail::show::of(tx, id).await?;
    Ok(Handled { item: Item::of(shown) })
}
