//! Topics: which waiting claims an event could satisfy.

/// Which waiting claims an event could satisfy. A waiter that a topic leaves out sleeps on; each waiter too many costs
/// an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    Everyone,
    Nobody,
    Of(String),
}

const ENDED: &str = "ended/";
const DEAD: &str = "dead/";

impl Topic {
    /// A task is finished. Its board may be finished with it, and leads get a notice.
    pub fn tasks() -> Self {
        Topic::Of("task".into())
    }
    pub fn lock(name: &str) -> Self {
        Topic::Of(format!("lock/{name}"))
    }
    pub fn once(key: &str) -> Self {
        Topic::Of(format!("once/{key}"))
    }
    /// A task that any agent may take.
    pub fn pool() -> Self {
        Topic::Of("pool".into())
    }
    /// A thing that only this agent could take.
    pub fn agent(name: &str) -> Self {
        Topic::Of(format!("agent/{name}"))
    }
    /// A run of this agent ended and held nothing: the agent may have room for more.
    pub fn ended(agent: Option<&str>) -> Self {
        Topic::Of(format!("{ENDED}{}", agent.unwrap_or_default()))
    }
    /// A run of this agent ended, and expiry still has to release the things that it held.
    pub fn dead(agent: Option<&str>) -> Self {
        Topic::Of(format!("{DEAD}{}", agent.unwrap_or_default()))
    }
    /// Expiry has work to do after this event.
    pub fn leaves_something_due(&self) -> bool {
        matches!(self, Topic::Of(topic) if topic.starts_with(DEAD))
    }
    pub fn mail(mailbox: &str) -> Self {
        Topic::Of(format!("mail/{mailbox}"))
    }
    /// The stored form.
    pub fn text(&self) -> Option<&str> {
        match self {
            Topic::Everyone => None,
            Topic::Nobody => Some(""),
            Topic::Of(topic) => Some(topic),
        }
    }
    pub fn read(text: Option<String>) -> Self {
        match text {
            None => Topic::Everyone,
            Some(text) if text.is_empty() => Topic::Nobody,
            Some(text) => Topic::Of(text),
        }
    }
}
