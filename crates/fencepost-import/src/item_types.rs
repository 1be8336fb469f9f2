//! The types of items other than tasks.

/// Calls a macro for each type: with the item's list in `admin/export` and `admin/import`, and its `type` in a file.
macro_rules! for_each_type {
    ($each:ident) => {
        $each!(agents, "agent");
        $each!(channels, "channel");
        $each!(posts, "post");
        $each!(cursors, "cursor");
        $each!(routes, "route");
        $each!(boards, "board");
        $each!(mailboxes, "mailbox");
        $each!(mail, "message");
    };
}
pub(crate) use for_each_type;
