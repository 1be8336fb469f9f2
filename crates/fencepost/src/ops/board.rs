//! Boards: groups of tasks. A board is created with its first task.

use crate::{
    db::Tx,
    engine::op::verbs,
    error::{Code, Error, Result},
    params,
};

verbs![list::List, show::Show];

/// Refuses the name of a board that does not exist: it is a mistake, and "everything is finished" would hide it.
pub(crate) async fn require(tx: &mut Tx<'_>, board: &str) -> Result<()> {
    match tx.query("select 1 as there from board where name = ?1", params![board]).await?.is_empty() {
        true => Err(not_found(board)),
        false => Ok(()),
    }
}

pub(crate) fn not_found(board: &str) -> Error {
    Error::new(Code::NotFound, format!("there is no board `{board}`"))
        .hint("fence board shows the boards there are")
}
