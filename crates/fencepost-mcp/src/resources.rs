//! The resources: the page that an agent reads first, boards and tasks.

use crate::{frame::framed, session::Session};
use fencepost::{Code, Error, Result, board, task};
use rmcp::model::{Resource, ResourceContents, ResourceTemplate};

const PRIME: &str = "fence://prime";
const BOARD: &str = "fence://board/";
const TASK: &str = "fence://task/";
const JSON: &str = "application/json";

/// The page of [`PRIME`].
const PAGE: &str = include_str!("prime.md");

/// The resources that exist now: the page, and every board.
pub async fn list(session: &Session<'_>) -> Result<Vec<Resource>> {
    let page = Resource::new(PRIME, "prime")
        .with_description("How to work with these tools: the loop, and what refusals mean. Read it first.")
        .with_mime_type("text/markdown");
    let boards = session.call(board::List {}).await?.boards;
    let boards = boards.into_iter().map(|board| {
        Resource::new(format!("{BOARD}{}", board.name), board.name)
            .with_description(format!("{} tasks are ready", board.ready))
            .with_mime_type(JSON)
    });
    Ok(std::iter::once(page).chain(boards).collect())
}

pub fn templates() -> Vec<ResourceTemplate> {
    vec![
        ResourceTemplate::new(format!("{BOARD}{{board}}"), "board")
            .with_description("A board with its tasks and dependencies")
            .with_mime_type(JSON),
        ResourceTemplate::new(format!("{TASK}{{task}}"), "task")
            .with_description("A task in full, with notes and outputs")
            .with_mime_type(JSON),
    ]
}

pub fn prime(uri: &str) -> Option<ResourceContents> {
    (uri == PRIME).then(|| ResourceContents::text(PAGE, uri).with_mime_type("text/markdown"))
}

pub async fn read(session: &Session<'_>, uri: &str) -> Result<ResourceContents> {
    let reply = match (uri.strip_prefix(BOARD), uri.strip_prefix(TASK)) {
        (Some(board), _) => session.send(board::Show { board: board.to_owned(), limit: None }).await?,
        (None, Some(task)) => session.send(task::Show { task: task.to_owned() }).await?,
        (None, None) => return Err(Error::new(Code::NotFound, format!("there is no resource `{uri}`"))),
    };
    Ok(ResourceContents::text(framed(reply).to_string(), uri).with_mime_type(JSON))
}
