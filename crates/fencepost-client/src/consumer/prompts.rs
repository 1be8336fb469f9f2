//! Matching responses to prompts.

use super::{Message, in_flight};
use std::{collections::VecDeque, fmt};

/// Prompts sent ahead to a model's client, and the message that each is about. Every response completes the message that
/// it answers and no other.
///
/// Responses come in the order of the prompts, but a client may lose a response or send one that nobody asked for.
/// Giving each response to the oldest prompt would then shift all later ones, and store each answer under the wrong
/// message. So a response is matched by the number that was sent with its prompt ([`Self::response`]). For a client that
/// echoes no numbers, the responses of a turn are matched together, if they are as many as its prompts
/// ([`Self::turn`]). On a mismatch **every message in flight is given back**, and nothing is matched any more: start the
/// client anew, with new `Prompts`.
#[derive(Debug, Default)]
pub struct Prompts {
    /// By number. A prompt may be about no message.
    outstanding: VecDeque<(u64, Option<Message>)>,
    sent: u64,
    broken: bool,
}

/// Prompts and responses do not match. All messages in flight were given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    what: String,
    /// Ids of the messages that were given back.
    pub returned: Vec<i64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.returned.len() {
            1 => write!(f, "{}; 1 message was given back", self.what),
            n => write!(f, "{}; {n} messages were given back", self.what),
        }
    }
}

impl std::error::Error for Mismatch {}

impl Prompts {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a prompt about this message. Returns the number to send with it.
    pub fn sent(&mut self, message: Message) -> u64 {
        self.add(Some(message))
    }

    /// Adds a prompt about no message. Returns the number to send with it.
    pub fn sent_without_message(&mut self) -> u64 {
        self.add(None)
    }

    fn add(&mut self, message: Option<Message>) -> u64 {
        self.sent += 1;
        self.outstanding.push_back((self.sent, message));
        self.sent
    }

    /// How many prompts have no response yet.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// Takes the response to the prompt of this number. Returns the prompt's message: complete it with the outputs of the
    /// response, even if there are none. For `None`, store the outputs and complete nothing.
    pub async fn response(&mut self, to: u64) -> Result<Option<Message>, Mismatch> {
        let oldest = self.outstanding.front().map(|(number, _)| *number);
        let what = match oldest {
            _ if self.broken => format!("a response to prompt {to} came after a mismatch"),
            Some(number) if number == to => {
                return Ok(self.outstanding.pop_front().and_then(|(_, message)| message));
            }
            Some(number) if to > number && to <= self.sent => {
                format!("a response to prompt {to} came, and none to prompt {number}")
            }
            _ => format!("a response to prompt {to} came, and that prompt is not outstanding"),
        };
        Err(self.mismatch(what).await)
    }

    /// Takes all responses of a turn, if they are as many as its prompts. For clients that echo no numbers: before the
    /// end of a turn nobody can know which response belongs to which prompt.
    pub async fn turn<R>(&mut self, responses: Vec<R>) -> Result<Vec<(Option<Message>, R)>, Mismatch> {
        if !self.broken && responses.len() == self.outstanding.len() {
            return Ok(self.outstanding.drain(..).map(|(_, message)| message).zip(responses).collect());
        }
        let what = format!(
            "the turn ended with {} responses to {} prompts",
            responses.len(),
            self.outstanding.len()
        );
        Err(self.mismatch(what).await)
    }

    /// The client has ended. A mismatch if prompts are outstanding.
    pub async fn ended(mut self) -> Result<(), Mismatch> {
        match self.outstanding.len() {
            0 => Ok(()),
            n => Err(self.mismatch(format!("the client ended with {n} prompts unanswered")).await),
        }
    }

    async fn mismatch(&mut self, what: String) -> Mismatch {
        self.broken = true;
        let messages: Vec<Message> = self.outstanding.drain(..).filter_map(|(_, message)| message).collect();
        let returned = messages.iter().map(|message| message.id).collect();
        in_flight::release_all(messages).await;
        Mismatch { what, returned }
    }
}
