//! Which response belongs to which prompt.

use super::{Letter, hands};
use std::{collections::VecDeque, fmt};

/// Prompts that a model's client was sent ahead, and what each was about, so that every response completes the message
/// that it answers and no other.
///
/// Responses come in the order of the prompts, but a client may lose one, or say something that nobody asked. Taking
/// the oldest prompt for each response would then shift all that follow by one, and store each answer under another
/// message. So a response is paired by the number that its prompt was sent with ([`Self::response`]), or, if the client
/// echoes nothing, a turn's responses are paired all at once when they are as many as its prompts ([`Self::turn`]).
/// Where it does not fit, **everything in flight is given back** and nothing is paired any more: start the client
/// anew, with a pairing of its own.
#[derive(Debug, Default)]
pub struct Pairing {
    /// By number. A prompt without a message has no letter.
    waiting: VecDeque<(u64, Option<Letter>)>,
    sent: u64,
    broken: bool,
}

/// Prompts and responses do not fit. All messages in flight were given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mispaired {
    what: String,
    /// The messages that were given back.
    pub returned: Vec<i64>,
}

impl fmt::Display for Mispaired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.returned.len() {
            1 => write!(f, "{}; 1 message was given back", self.what),
            n => write!(f, "{}; {n} messages were given back", self.what),
        }
    }
}

impl std::error::Error for Mispaired {}

impl Pairing {
    pub fn new() -> Self {
        Self::default()
    }

    /// A prompt about this message is sent. Gives the number to send along.
    pub fn sent(&mut self, letter: Letter) -> u64 {
        self.send(Some(letter))
    }

    /// A prompt without a message is sent. Gives the number to send along.
    pub fn sent_without_message(&mut self) -> u64 {
        self.send(None)
    }

    fn send(&mut self, letter: Option<Letter>) -> u64 {
        self.sent += 1;
        self.waiting.push_back((self.sent, letter));
        self.sent
    }

    /// How many prompts wait for their response.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// A response to the prompt of this number has come. Gives the message that the prompt was about: complete it with
    /// what came of it, also if that is nothing. If there is none, store what came of it, and complete nothing.
    pub async fn response(&mut self, to: u64) -> Result<Option<Letter>, Mispaired> {
        let oldest = self.waiting.front().map(|(number, _)| *number);
        let what = match oldest {
            _ if self.broken => format!("a response to prompt {to} came after prompts and responses parted"),
            Some(number) if number == to => {
                return Ok(self.waiting.pop_front().and_then(|(_, letter)| letter));
            }
            Some(number) if to > number && to <= self.sent => {
                format!("a response to prompt {to} came, and none to prompt {number}")
            }
            _ => format!("a response to prompt {to} came, and that is not waited for"),
        };
        Err(self.part(what).await)
    }

    /// A turn has ended, with these responses: as many as there are prompts, or something was lost or added. For clients
    /// that echo no numbers; before the turn has ended it cannot be known which response is whose.
    pub async fn turn<R>(&mut self, responses: Vec<R>) -> Result<Vec<(Option<Letter>, R)>, Mispaired> {
        if !self.broken && responses.len() == self.waiting.len() {
            return Ok(self.waiting.drain(..).map(|(_, letter)| letter).zip(responses).collect());
        }
        let what =
            format!("the turn ended with {} responses to {} prompts", responses.len(), self.waiting.len());
        Err(self.part(what).await)
    }

    /// The client has nothing more to say.
    pub async fn ended(mut self) -> Result<(), Mispaired> {
        match self.waiting.len() {
            0 => Ok(()),
            n => Err(self.part(format!("the client ended with {n} prompts unanswered")).await),
        }
    }

    async fn part(&mut self, what: String) -> Mispaired {
        self.broken = true;
        let letters: Vec<Letter> = self.waiting.drain(..).filter_map(|(_, letter)| letter).collect();
        let returned = letters.iter().map(|letter| letter.message.id).collect();
        hands::give_back(letters).await;
        Mispaired { what, returned }
    }
}
