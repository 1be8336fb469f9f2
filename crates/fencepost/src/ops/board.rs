//! Boards: groups of tasks. A board is made by its first task.

use crate::{
    db::Tx,
    engine::op::verbs,
    error::{Code, Error, Result},
    params,
};

verbs![list::List, show::Show];

/// Who asks for a board by a name that none has made a mistake, and is not to be told that all is done there.
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
