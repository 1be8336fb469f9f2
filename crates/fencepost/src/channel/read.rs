use super::{
    PostView, enter, next_number, posts,
    reader::{load, load_locked},
};
use crate::{
    error::{Error, Result},
    names::{Resource, Token, check},
    op::{Access, Op},
    params,
    tx::Tx,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Read a channel from where the agent left off, a page at a time. Marking it as read moves the cursor exactly to what
/// was returned. It ends the claim on the mentions there if the reader is its holder; otherwise the claim stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    pub channel: String,
    pub agent: String,
    /// From this post on, wherever the cursor is.
    #[serde(default)]
    pub from: Option<i64>,
    /// At most this many (50 unless said, at most 500).
    #[serde(default)]
    pub limit: Option<i64>,
    /// Only look: the cursor stays where it is.
    #[serde(default)]
    pub peek: bool,
    /// The claim on the mentions that were given.
    #[serde(default)]
    pub token: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Page {
    pub posts: Vec<PostView>,
    /// How far the agent has read now.
    pub cursor: i64,
    /// There is another page.
    pub more: bool,
    /// The claim on the mentions ended with this.
    pub settled: bool,
}

impl Op for Read {
    const NAME: &'static str = "channel/read";
    const ACCESS: Access = Access::Agent;
    type Reply = Page;

    async fn run(self, tx: &mut Tx<'_>) -> Result<Page> {
        check::plain_name("channel", &self.channel)?;
        check::plain_name("agent", &self.agent)?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let limit = self.limit.unwrap_or(50);
        check::range("limit", limit, 1, 500)?;
        let token = self.token.as_deref().map(Token::check).transpose()?;
        let resource = Resource::Mentions { agent: self.agent.clone(), channel: self.channel.clone() };
        if token.as_ref().is_some_and(|token| token.resource != resource) {
            return Err(Error::invalid("token", format!("is not a claim on `{resource}`")));
        }
        next_number(tx, &self.channel).await?;
        if !self.peek {
            tx.one(enter(&self.agent, &self.channel, tx.now)).await?;
        }
        let found = match self.peek {
            true => load(tx, &self.agent, &self.channel).await?,
            false => load_locked(tx, &self.agent, &self.channel).await?,
        };
        let cursor = found.as_ref().map_or(0, |reader| reader.read);
        let from = self.from.unwrap_or(cursor + 1);
        let sql = posts!("where channel = ?1 and n >= ?2 order by n limit ?3");
        let mut rows = tx.query(sql, params![&self.channel, from, limit + 1]).await?;
        let more = rows.len() as i64 > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        let posts = rows.iter_mut().map(PostView::read).collect::<Result<Vec<_>>>()?;
        let last = posts.last().map_or(cursor, |post| post.n);
        let mut page = Page { posts, cursor, more, settled: false };
        // A page that skips unread posts marks nothing: they would be lost.
        let marks = !self.peek && from <= cursor + 1;
        let (Some(found), true) = (found, marks) else { return Ok(page) };
        page.cursor = cursor.max(last);
        let held = token.as_ref().and_then(|token| {
            found.hold.as_ref().filter(|hold| hold.fence == token.fence && hold.is_alive(tx.now))
        });
        let mut after = found.clone();
        if held.is_some() {
            after = found.free("done");
        }
        page.settled = held.is_some();
        after.read = page.cursor;
        if page.settled || after.read > found.read {
            let event = after.event("mentions.read", &found);
            let statements = vec![after.save(&found, None, tx.now), event.insert(tx)];
            tx.pipeline(statements).await?;
        }
        Ok(page)
    }
}
