//! `plan`: a new task, or a note on one.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Result, task};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "plan",
    about: "Add a task for work that you find or split off (title, and body with what and why), instead of doing it unclaimed. Or \
            leave a note on any task (task and note).",
    fields: &[
        Field::new("title", Kind::Text, ""),
        Field::new("body", Kind::Text, ""),
        Field::new("done_when", Kind::Text, "How to tell that it is done"),
        Field::new("board", Kind::Text, "Default: main"),
        Field::new("after", Kind::Texts, "Tasks that must be done first, such as [\"auth-3\"]"),
        Field::new("priority", Kind::Number, "0 to 100, higher first; 50"),
        Field::new("tags", Kind::Texts, ""),
        Field::new("to", Kind::Text, "Assign it to this agent"),
        Field::new("task", Kind::Text, "The task of the note"),
        Field::new("note", Kind::Text, ""),
    ],
    required: &[],
    effect: Effect::Writes,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    if let Some(task) = args.task("task") {
        args.only("task is for a note; a new task has a title", &["task", "note"])?;
        let text = args.required("note", "")?;
        return session.send(task::Note { task, text, request: session.request() }).await;
    }
    let add = task::Add {
        title: args.required("title", ": it names the new task; task and note leave a note")?,
        board: args.text("board"),
        body: args.text("body"),
        done_when: args.text("done_when"),
        after: args.texts("after"),
        priority: args.number("priority"),
        tags: args.texts("tags"),
        to: args.text("to"),
        request: session.request(),
        ..task::Add::default()
    };
    args.only(
        "a note needs its task",
        &["title", "body", "done_when", "board", "after", "priority", "tags", "to"],
    )?;
    session.send(add).await
}
