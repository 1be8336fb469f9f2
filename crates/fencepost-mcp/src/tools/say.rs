//! `say`: a post, a message, or the answer to one.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Error, Result, channel, inbox};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "say",
    about: "Tell others something: post to a channel (channel, text), write to an agent (agent, text), answer a message that poll gave \
            you (message, text), or turn that message into a task (message, and title or task).",
    fields: &[
        Field::new("text", Kind::Text, "@name mentions an agent"),
        Field::new("channel", Kind::Text, ""),
        Field::new("reply_to", Kind::Number, "Number of the post that it answers"),
        Field::new("agent", Kind::Text, ""),
        Field::new("message", Kind::Text, "Its token or number"),
        Field::new("title", Kind::Text, "Of the new task"),
        Field::new("board", Kind::Text, "Of the new task"),
        Field::new("to", Kind::Text, "Agent that gets the new task"),
        Field::new("task", Kind::Text, "An existing task"),
    ],
    required: &[],
    effect: Effect::Writes,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let text = args.text("text");
    let needed = || text.clone().ok_or_else(|| Error::invalid("text", "is missing"));
    match (args.text("channel"), args.text("agent"), args.text("message")) {
        (Some(channel), None, None) => {
            args.only("it is a post", &["channel", "text", "reply_to"])?;
            let post = channel::Post {
                channel,
                body: needed()?,
                author: session.agent(),
                reply_to: args.number("reply_to"),
                request: session.request(),
                ..channel::Post::default()
            };
            session.send(post).await
        }
        (None, Some(agent), None) => {
            args.only("it is a message to an agent", &["agent", "text"])?;
            let send =
                inbox::Send { agent, text: needed()?, request: session.request(), ..inbox::Send::default() };
            session.send(send).await
        }
        (None, None, Some(message)) => match text {
            Some(text) => {
                args.only("it answers a message", &["message", "text"])?;
                session.end(inbox::Respond { message, text }).await
            }
            None => {
                args.only("it delegates a message", &["message", "title", "board", "to", "task"])?;
                let delegate = inbox::Delegate {
                    message,
                    task: args.task("task"),
                    title: args.text("title"),
                    board: args.text("board"),
                    to: args.text("to"),
                    offer: None,
                };
                session.end(delegate).await
            }
        },
        _ => Err(Error::invalid("channel", "or agent or message: name exactly one, to say who hears it")),
    }
}
