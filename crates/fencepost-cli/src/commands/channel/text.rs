//! Posts as text.

use crate::output::{Terminal, text::quoted};
use fencepost::channel::PostView;

/// Posts with their authors, one after the other.
pub fn posts(posts: &[PostView], terminal: &Terminal) -> String {
    let pages = posts.iter().map(|post| {
        let (n, author) = (post.n, post.author.as_deref().unwrap_or("somebody"));
        let answers = post.reply_to.map_or(String::new(), |to| format!(", answering {to}"));
        let head = format!("{n}  {author}, {}{answers}", terminal.when(post.at));
        format!("{}\n{}", terminal.bold(&head), quoted(&post.body))
    });
    pages.collect::<Vec<_>>().join("\n\n")
}
