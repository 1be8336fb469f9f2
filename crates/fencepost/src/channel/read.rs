use super::{
    PostView, enter, next_number, posts,
    reader::{Record, load, load_locked},
};
use crate::{
    before::Before,
    claim::{Last, require},
    error::{Code, Error, Result},
    names::{Resource, Token, check},
    op::{Access, Op, erased},
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
    /// Asking again with the same id gives the first page again.
    #[serde(default)]
    pub request: Option<String>,
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
    erased!();

    fn before(&self) -> Before {
        self.token.as_deref().map_or_else(Before::nothing, Before::holds).once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Page> {
        check::plain_name("channel", &self.channel)?;
        check::plain_name("agent", &self.agent)?;
        check::request(self.request.as_deref())?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let limit = self.limit.unwrap_or(50);
        check::range("limit", limit, 1, 500)?;
        let token = self.token.as_deref().map(Token::check).transpose()?;
        let resource = Resource::Mentions { agent: self.agent.clone(), channel: self.channel.clone() };
        if token.as_ref().is_some_and(|token| token.resource != resource) {
            return Err(Error::invalid("token", format!("is not a claim on `{resource}`")));
        }
        next_number(tx, &self.channel).await?;
        if tx.opening.is_repeat("mentions.read", Some(&resource))? {
            return self.repeated(tx, &resource, None).await;
        }
        if self.peek {
            let cursor = load(tx, &self.agent, &self.channel).await?.map_or(0, |reader| reader.read);
            let (posts, more) = self.page(tx, self.from.unwrap_or(cursor + 1), limit).await?;
            return Ok(Page { posts, cursor, more, settled: false });
        }
        tx.one(enter(&self.agent, &self.channel, tx.now)).await?;
        let found = load_locked(tx, &self.agent, &self.channel).await?;
        let found = found.ok_or_else(|| Error::internal("nobody's place in the channel"))?;
        if let Some(token) = &token {
            if found.last == Some(Last::new(token.fence, READ, &[])) {
                return self.repeated(tx, &resource, Some(token.fence)).await;
            }
            require(Some(&found.look()), token, tx.now)?;
        }
        let from = self.from.unwrap_or(found.read + 1);
        let (posts, more) = self.page(tx, from, limit).await?;
        let mut page = Page { posts, cursor: found.read, more, settled: false };
        // A page that skips unread posts marks nothing: they would be lost.
        if from <= found.read + 1 {
            page.cursor = page.posts.last().map_or(found.read, |post| post.n.max(found.read));
            page.settled = token.is_some();
            mark(tx, &found, &page, from).await?;
        }
        Ok(page)
    }
}

/// How a claim ended that was read to its end: another verb than that of `run/settle`, which is no repeat of this.
const READ: &str = "read";

/// The cursor moves to what the page gave; the claim ends if the page was read under it, and only while it is alive.
async fn mark(tx: &mut Tx<'_>, found: &Record, page: &Page, from: i64) -> Result<()> {
    if !page.settled && page.cursor == found.read {
        return Ok(());
    }
    let mut after = if page.settled { found.free(READ) } else { found.clone() };
    (after.read, after.attempts) = (page.cursor, if page.settled { 0 } else { found.attempts });
    let under = found.hold.as_ref().map(|hold| hold.run_key).filter(|_| page.settled);
    let details = serde_json::json!({ "from": from, "to": page.posts.last().map(|post| post.n) });
    let event = after.event("mentions.read", found).details(details);
    let statements = vec![after.save(found, under, tx.now), event.insert(tx)];
    if tx.pipeline(statements).await?[0].affected == 0 {
        return Err(Error::new(Code::LeaseExpired, "the claim on these mentions ended at this moment")
            .hint("what you read is not marked; poll with a new run"));
    }
    Ok(())
}

impl Read {
    async fn page(&self, tx: &mut Tx<'_>, from: i64, limit: i64) -> Result<(Vec<PostView>, bool)> {
        let sql = posts!("where channel = ?1 and n >= ?2 order by n limit ?3");
        let mut rows = tx.query(sql, params![&self.channel, from, limit + 1]).await?;
        let more = rows.len() as i64 > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok((rows.iter_mut().map(PostView::read).collect::<Result<_>>()?, more))
    }

    /// The page that this request, or this claim, was given before.
    async fn repeated(&self, tx: &mut Tx<'_>, resource: &Resource, fence: Option<i64>) -> Result<Page> {
        let rows = tx
            .query(
                "select details from event where resource = ?1 and kind = 'mentions.read'
                 and (request = ?2 or (fence = ?3 and to_state <> 'processing')) order by id limit 1",
                params![resource.to_string(), self.request.as_deref(), fence],
            )
            .await?;
        let details: Option<String> = rows.first().map_or(Ok(None), |row| row.get("details"))?;
        let read: serde_json::Value =
            serde_json::from_str(details.as_deref().unwrap_or("null")).map_err(Error::internal)?;
        let (from, to) = (read["from"].as_i64().unwrap_or(i64::MAX), read["to"].as_i64());
        let mut page = Page { posts: Vec::new(), cursor: 0, more: false, settled: self.token.is_some() };
        if let Some(to) = to {
            (page.posts, page.more) = self.page(tx, from, to - from + 1).await?;
        }
        page.cursor = load(tx, &self.agent, &self.channel).await?.map_or(0, |reader| reader.read);
        Ok(page)
    }
}
