use super::{
    PostView, enter, next_number, posts,
    reader::{Record, load, load_locked},
};
use crate::{
    caller::Access,
    db::Tx,
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Error, Result},
    ids::{Resource, Token},
    lease::hold::{require, write_logged},
    limits::check,
    ops::storm::wakeups,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Read a channel from the agent's cursor on, a page at a time, and mark the returned posts as read. While a run holds
/// the agent's mentions in the channel, a read marks nothing: settling that run moves the cursor and ends the claim.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    pub channel: String,
    pub agent: String,
    /// Start at this post instead of at the cursor.
    #[serde(default)]
    pub from: Option<i64>,
    /// At most this many (default 50, at most 500).
    #[serde(default)]
    pub limit: Option<i64>,
    /// Do not move the cursor.
    #[serde(default)]
    pub peek: bool,
    /// Token of the claim on the mentions, if the reader has it. This renews the claim's run, and refuses a lost claim.
    #[serde(default)]
    pub token: Option<String>,
    /// Request id: repeating the call with the same id returns the first page again.
    #[serde(default)]
    pub request: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Page {
    pub posts: Vec<PostView>,
    /// The agent's cursor: the last post that it has read.
    pub cursor: i64,
    /// There is another page.
    pub more: bool,
    /// The run that holds the mentions, if any. Then no post was marked as read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
}

impl Op for Read {
    const NAME: &'static str = "channel/read";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"channel":"general","agent":"codex-1"}"#;
    refuses![LeaseExpired];
    type Reply = Page;
    erased!();

    fn prelude(&self) -> Prelude {
        self.token.as_deref().map_or_else(Prelude::nothing, Prelude::holds).once(self.request.as_deref())
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Page> {
        check::plain_name("channel", &self.channel)?;
        check::plain_name("agent", &self.agent)?;
        check::request(self.request.as_deref())?;
        tx.caller.acting_as("agent", Some(&self.agent))?;
        let limit = self.limit.unwrap_or(50);
        check::range("limit", limit, 1, 500)?;
        let token = self.token.as_deref().map(Token::check).transpose()?;
        let resource = Resource::new("mentions", format_args!("{}/{}", self.agent, self.channel));
        if token.as_ref().is_some_and(|token| token.resource != resource) {
            return Err(Error::invalid("token", format!("is not a claim on `{resource}`")));
        }
        next_number(tx, &self.channel).await?;
        if tx.opening.is_repeat("mentions.read", Some(&resource))? {
            return self.repeated(tx, &resource).await;
        }
        let found = if self.peek || token.is_some() {
            load(tx, &self.agent, &self.channel).await?
        } else {
            tx.one(enter(&self.agent, &self.channel, tx.now)).await?;
            load_locked(tx, &self.agent, &self.channel).await?
        };
        if let Some(token) = &token {
            require(found.as_ref().map(Record::claim_state).as_ref(), token, tx.now)?;
        }
        let cursor = found.as_ref().map_or(0, |reader| reader.read);
        let holder =
            found.as_ref().and_then(|reader| reader.hold.as_ref()).filter(|hold| hold.is_alive(tx.now));
        let held_by = holder.map(|hold| hold.run.clone());
        let from = self.from.unwrap_or(cursor + 1);
        let (posts, more) = self.page(tx, from, limit).await?;
        let mut page = Page { posts, cursor, more, held_by };
        // Marking is skipped if the page skips unread posts, or if a run holds the mentions: they would be lost.
        if let Some(found) = found.filter(|_| !self.peek && page.held_by.is_none() && from <= cursor + 1) {
            page.cursor = page.posts.last().map_or(cursor, |post| post.n.max(cursor));
            mark(tx, &found, &page, from).await?;
        }
        Ok(page)
    }
}

/// Moves the cursor to the end of the page, unless a run has just claimed the mentions.
async fn mark(tx: &mut Tx<'_>, found: &Record, page: &Page, from: i64) -> Result<()> {
    if page.cursor == found.read {
        return Ok(());
    }
    let after = Record { read: page.cursor, ..found.clone() };
    let details = serde_json::json!({ "from": from, "to": page.posts.last().map(|post| post.n) });
    let event = after.event("mentions.read", found).details(details).insert(tx);
    if write_logged(tx, after.save(found, None, tx.now), event).await? == 0 {
        return Err(Error::raced("the mentions were claimed at this moment"));
    }
    wakeups::drop_read_by(tx, &after.agent, &after.channel, after.read).await
}

impl Read {
    async fn page(&self, tx: &mut Tx<'_>, from: i64, limit: i64) -> Result<(Vec<PostView>, bool)> {
        let sql = posts!("where channel = ?1 and n >= ?2 order by n limit ?3");
        let mut rows = tx.query(sql, params![&self.channel, from, limit + 1]).await?;
        let more = rows.len() as i64 > limit;
        rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok((rows.iter_mut().map(PostView::read).collect::<Result<_>>()?, more))
    }

    /// A repeated request: the same page again.
    async fn repeated(&self, tx: &mut Tx<'_>, resource: &Resource) -> Result<Page> {
        let rows = tx
            .query(
                "select details from event where resource = ?1 and kind = 'mentions.read' and request = ?2
                 order by id limit 1",
                params![resource.to_string(), self.request.as_deref()],
            )
            .await?;
        let details: Option<String> = rows.first().map_or(Ok(None), |row| row.get("details"))?;
        let read: serde_json::Value =
            serde_json::from_str(details.as_deref().unwrap_or("null")).map_err(Error::internal)?;
        let (from, to) = (read["from"].as_i64().unwrap_or(i64::MAX), read["to"].as_i64());
        let mut page = Page { posts: Vec::new(), cursor: 0, more: false, held_by: None };
        if let Some(to) = to {
            (page.posts, page.more) = self.page(tx, from, to - from + 1).await?;
        }
        page.cursor = load(tx, &self.agent, &self.channel).await?.map_or(0, |reader| reader.read);
        Ok(page)
    }
}
