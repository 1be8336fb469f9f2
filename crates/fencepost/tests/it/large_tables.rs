//! A call reads no more rows when the tables grow. PostgreSQL counts the rows that it reads.

use fencepost::{Op, Tx, agent, channel, claim, event, inbox, lock, mail, params, run, storm, task};
use fencepost_testing::World;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Enough rows of everything. With fewer, reading the whole table would be the right plan.
const BATCH: i64 = 1000;
/// The rows that a call may read: a page, and some to find it.
const FEW: i64 = 300;
/// Before `analyze`, PostgreSQL sorts for these ops instead of reading an index in order.
const UNKNOWING: [&str; 3] = ["task/list", "channel/read", "run/end"];

/// Runs `analyze` on the fleet's own tables; other fleets are in the same database.
const COUNT: &str = "do $$ declare own text; begin
  for own in select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r' loop
    execute format('analyze %I', own);
  end loop; end $$";

/// Keeps autovacuum from the fleet's own tables: it would count some of them in the middle, and the plans would depend on the moment.
const UNCOUNTED: &str = "do $$ declare own text; begin
  for own in select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r' loop
    execute format('alter table %I set (autovacuum_enabled = off)', own);
  end loop; end $$";

/// How many rows of the fleet's tables, and entries of their indexes, this transaction has read.
pub async fn rows_read(tx: &mut Tx<'_>) -> fencepost::Result<i64> {
    Ok(rows_by_table(tx).await?.values().sum())
}

async fn rows_by_table(tx: &mut Tx<'_>) -> fencepost::Result<BTreeMap<String, i64>> {
    let sql = "select relname::text as name,
                 pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid) as n
               from pg_class where relnamespace = current_schema()::regnamespace and relkind in ('r', 'i')";
    tx.query(sql, params![]).await?.iter().map(|row| Ok((row.get("name")?, row.get("n")?))).collect()
}

/// Calls an op and returns how many rows it read.
async fn read_for<O: Op>(world: &World, request: &Value) -> BTreeMap<String, i64> {
    let op: O = serde_json::from_value(request.clone()).unwrap_or_else(|e| panic!("{}: {e}", O::NAME));
    let read = world.fleet.transaction(move |tx| {
        let op = op.clone();
        Box::pin(async move {
            // The rows that a parallel worker reads are counted elsewhere, so there must be none.
            tx.execute("set local max_parallel_workers_per_gather = 0", params![]).await?;
            let before = rows_by_table(tx).await?;
            tx.call(op).await?;
            let mut read = rows_by_table(tx).await?;
            read.iter_mut().for_each(|(name, n)| *n -= before[name]);
            read.retain(|_, n| *n > 0);
            Ok(read)
        })
    });
    read.await.unwrap_or_else(|e| panic!("{} {request}: {e:?}", O::NAME))
}

/// Each round has runs, keys and items of its own.
fn in_round(round: &str, request: &Value) -> Value {
    let (nth, first) = if round == "guessing" { ("1", "1@1") } else { ("2", "2@2") };
    let text = request.to_string().replace("ROUND", round).replace("NTH", nth).replace("FIRST", first);
    serde_json::from_str(&text).expect("still JSON")
}

/// Calls each op, and lists those that read too many rows.
macro_rules! few {
    ($world:expr, $round:expr, $many:expr, $($op:ty: $request:tt,)*) => {
        $(let request = in_round($round, &json!($request));
        let rows = read_for::<$op>($world, &request).await;
        let known = $round == "knowing" || !UNKNOWING.contains(&<$op>::NAME);
        if known && rows.values().sum::<i64>() > FEW {
            $many.push(format!("{} {request} read {rows:?} in {}", <$op>::NAME, $round));
        })*
    };
}

/// At least ten thousand of everything: tasks in the pool, assigned, offered, blocked and completed; messages in all kinds
/// of mailboxes; runs, agents, posts.
async fn grow(world: &World) {
    let tags = |n: usize| if n.is_multiple_of(3) { vec!["rust".to_owned()] } else { vec![] };
    let items = (0..BATCH as usize).map(|n| task::plan::Item {
        title: "x".into(),
        tags: tags(n),
        after: if n % 5 == 4 { vec!["first".into()] } else { vec![] },
        name: (n == 0).then(|| "first".to_owned()),
        to: (n % 5 == 1).then(|| "bob".to_owned()),
        offer: (n % 5 == 2).then(|| "bob".to_owned()),
        ..Default::default()
    });
    let plan =
        |board: &str| task::Plan { board: Some(board.into()), tasks: items.clone().collect(), request: None };
    for board in ["auth", "old", "main"].repeat(10) {
        world.fleet.call(plan(board)).await.unwrap();
    }
    world
        .fleet
        .transaction(|tx| {
            Box::pin(async move {
                for sql in [
                    "insert into run(name, agent, ttl_ms, opened_at, expires_at, ended_at, settled)
                     select 'old' || n, 'bob', 1000, 1, 2, 3, 1 from generate_series(1, 15000) as n",
                    "insert into run(name, agent, ttl_ms, opened_at, expires_at)
                     select 'now' || n, 'eve', 1000, 1, 9000000000000 from generate_series(1, 15000) as n",
                    "insert into agent(name, role, strand_ms, joined_at, heard_until, strands_at)
                     select 'agent' || n, 'worker', 1800000, 1, 9000000000000, 9000000000000
                     from generate_series(1, 15000) as n",
                    "insert into channel(name, next_n, created_at)
                     select 'channel' || n, 1, 1 from generate_series(1, 15000) as n",
                    "insert into channel(name, next_n, created_at) values ('general', 20001, 1)",
                    "insert into post(channel, n, body, at) select 'general', n, 'x', n from generate_series(1, 20000) as n",
                    "insert into reader(agent, channel, member, read_n, updated_at)
                     select 'agent' || n, 'channel' || n % 300, 1, 0, 1 from generate_series(1, 15000) as n",
                    "insert into reader(agent, channel, member, read_n, updated_at)
                     select 'agent' || n, 'general', 1, n, 1 from generate_series(1, 15000, 10) as n",
                    "insert into reader(agent, channel, member, updated_at)
                     select 'bob', 'channel' || n, 1, 1 from generate_series(1, 20) as n",
                    // Wake-ups: old ones, and pairs that are looked at much later.
                    "update channel set marked_n = next_n - 1",
                    "insert into wakeup(agent, channel, n, message, at, cause, root, depth)
                     select 'agent' || n, 'channel' || n % 300, 1, -n, n, 'post/x/' || n, 'post/x/' || n % 100, 1
                     from generate_series(1, 15000) as n",
                    "insert into triggered(run, name, agent, kind, at, root, depth)
                     select -n, 'old' || n, 'agent' || n, 'unread_wakeup', n, 'post/x/' || n % 100, 1
                     from generate_series(1, 15000) as n",
                    "insert into caused(item, run, root, depth, at)
                     select 'post/x/' || n, 'old' || n, 'post/x/' || n % 100, 1, n from generate_series(1, 15000) as n",
                    "update reader set wake_n = 1, wake_at = 9000000000000, wake_why = 'budget' where agent <> 'bob' and read_n = 0",
                    "insert into mailbox(name, created_at) select 'box' || n, 1 from generate_series(1, 15000) as n",
                    "update task set status = 'completed', finished_at = 2, told = 1 where board = 'old' and n > 1
                       and waiting_on = 0",
                ] {
                    tx.execute(sql, params![]).await?;
                }
                Ok(())
            })
        })
        .await
        .unwrap();
    let strict = mail::Configure { mailbox: "strict".into(), strict: Some(true), ..Default::default() };
    world.fleet.call(strict).await.unwrap();
    for mailbox in ["plain", "strict", "done"] {
        let item = |n: i64| mail::push_many::Item {
            mailbox: mailbox.into(),
            payload: Some("x".into()),
            lane: (mailbox == "strict").then(|| format!("lane{}", n % 50)),
            ..Default::default()
        };
        for _ in 0..10 {
            let messages = (0..BATCH).map(item).collect();
            world.fleet.call(mail::PushMany { messages, request: None }).await.unwrap();
        }
    }
    let take = mail::Take { mailboxes: vec!["done".into()], count: Some(BATCH), ..Default::default() };
    world.fleet.call(take).await.unwrap();
    for n in 0..BATCH / 5 {
        let send = inbox::Send { agent: format!("agent{n}"), text: "x".into(), ..Default::default() };
        world.fleet.call(send).await.unwrap();
    }
    world.fleet.call(agent::Join { agent: "bob".into(), ..Default::default() }).await.unwrap();
    for (agent, can) in [("rusty", vec!["rust", "sql"]), ("other", vec!["cobol"])] {
        let capabilities = Some(can.into_iter().map(str::to_owned).collect());
        world
            .fleet
            .call(agent::Join { agent: agent.into(), capabilities, ..Default::default() })
            .await
            .unwrap();
    }
    // A board on which no other task fits. Its tasks are the last in every order.
    for tag in ["rust", "cobol"].repeat(2) {
        let add = task::Add { tags: vec![tag.into()], priority: Some(1), ..task::Add::new("small", "x") };
        world.fleet.call(add).await.unwrap();
    }
    for channel in ["quiet-guessing", "quiet-knowing"] {
        world.fleet.call(channel::Create { channel: channel.into(), ..Default::default() }).await.unwrap();
        for agent in ["bob", "rusty"] {
            let join = channel::Join { channel: channel.into(), agent: agent.into() };
            world.fleet.call(join).await.unwrap();
        }
    }
    let lead = agent::Join { agent: "lead".into(), role: Some(agent::Role::Lead), ..Default::default() };
    world.fleet.call(lead).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_read_no_more_rows_when_tables_grow() {
    let mut world = World::postgres().await;
    world.sql(UNCOUNTED).await;
    grow(&world).await;
    let mut many = Vec::new();
    // Connections of their own: those that filled the tables keep plans that PostgreSQL made while the tables were empty.
    world.fleet = world.again().await;
    for round in ["guessing", "knowing"] {
        if round == "knowing" {
            world.fleet.transaction(|tx| Box::pin(tx.execute(COUNT, params![]))).await.unwrap();
        }
        few! { &world, round, many,
            task::Add: { "title": "new", "board": "auth", "after": ["auth-1"], "key": "key-ROUND", "request": "add-ROUND" },
            task::Show: { "task": "auth-5" },
            task::Why: { "task": "auth-5" },
            event::List: { "resource": "task/auth-5" },
            event::List: { "resource": "task/auth-5", "last": 30 },
            event::List: { "from": "2100-01-01T00:00:00Z", "titles": true, "limit": 20 },
            task::List: { "board": "auth", "limit": 20 },
            task::Claim: { "run": "ROUND", "board": "auth" },
            task::Claim: { "run": "ROUND", "board": "auth", "tag": "rust", "request": "claim-ROUND" },
            task::Claim: { "run": "ROUND", "board": "auth", "tag": "rust", "request": "claim-ROUND" },
            task::ClaimMany: { "run": "ROUND", "board": "main", "count": 5 },
            task::Claim: { "task": "auth-NTH11", "run": "ROUND" },
            claim::Renew: { "token": "task/auth-NTH11@1" },
            claim::Guard: { "token": "task/auth-NTH11@1" },
            task::Done: { "token": "task/auth-NTH11@1", "output": "x" },
            task::Claim: { "task": "auth-NTH21", "run": "ROUND" },
            task::Fail: { "token": "task/auth-NTH21@1", "reason": "x", "retry": true },
            task::Claim: { "task": "auth-NTH31", "run": "ROUND" },
            claim::Release: { "token": "task/auth-NTH31@1" },
            task::Claim: { "run": "ROUND", "board": "main", "agent": "bob" },
            task::Claim: { "run": "ROUND", "board": "main", "tag": "rust", "agent": "bob" },
            claim::List: { "run": "ROUND" },
            lock::Claim: { "name": "deploy-ROUND", "run": "ROUND" },
            run::List: { "run": "ROUND" },
            mail::Push: { "mailbox": "plain", "payload": "x", "key": "key-ROUND" },
            mail::Push: { "mailbox": "strict", "payload": "x", "lane": "lane1" },
            mail::Claim: { "mailboxes": ["plain"], "run": "ROUND", "count": 3 },
            mail::Done: { "token": "message/FIRST", "outputs": ["x"] },
            mail::Claim: { "mailboxes": ["strict"], "run": "ROUND", "count": 3 },
            mail::Claim: { "mailboxes": ["plain", "strict"], "run": "ROUND" },
            mail::Take: { "mailboxes": ["plain"] },
            mail::Take: { "mailboxes": ["strict"] },
            mail::Peek: { "mailbox": "plain" },
            inbox::Send: { "agent": "bob", "text": "x", "key": "key-ROUND" },
            channel::Post: { "channel": "general", "body": "@bob look", "author": "agent3", "key": "key-ROUND" },
            channel::Read: { "channel": "general", "agent": "agent14991", "limit": 20 },
            agent::Poll: { "agent": "bob", "run": "offered-ROUND", "accept": ["task_offered"] },
            agent::Poll: { "agent": "bob", "run": "assigned-ROUND", "accept": ["task_assigned"] },
            agent::Poll: { "agent": "bob", "run": "inbox-ROUND", "accept": ["inbox_message"] },
            agent::Poll: { "agent": "bob", "run": "mentions-ROUND", "accept": ["unread_mentions"] },
            agent::Poll: { "agent": "bob", "run": "pool-ROUND", "accept": ["pool_task"] },
            agent::Poll: { "agent": "bob", "run": "any-ROUND" },
            agent::Poll: { "agent": "bob", "run": "board-ROUND", "accept": ["pool_task"], "board": "main" },
            agent::Poll: { "agent": "bob", "run": "tag-ROUND", "accept": ["pool_task"], "board": "main", "tag": "rust" },
            agent::Poll: { "agent": "rusty", "run": "rusty-ROUND", "accept": ["pool_task"], "board": "main" },
            agent::Poll: { "agent": "rusty", "run": "both-ROUND", "accept": ["pool_task"], "board": "main", "tag": "rust" },
            agent::Poll: { "agent": "rusty", "run": "none-ROUND", "accept": ["pool_task"], "board": "main", "tag": "sql" },
            agent::Poll: { "agent": "other", "run": "other-ROUND", "accept": ["pool_task"], "board": "small" },
            agent::Poll: { "agent": "bob", "run": "small-ROUND", "accept": ["pool_task"], "board": "small", "tag": "rust" },
            agent::Poll: { "agent": "agent7", "run": "nothing-ROUND", "accept": ["task_offered", "unread_mentions"] },
            agent::Poll: { "agent": "lead", "run": "lead-ROUND" },
            run::Settle: { "run": "offered-ROUND", "outcome": "released" },
            run::Settle: { "run": "assigned-ROUND" },
            run::Settle: { "run": "inbox-ROUND" },
            run::Settle: { "run": "mentions-ROUND" },
            run::Settle: { "run": "pool-ROUND" },
            run::End: { "run": "ROUND" },
        }
        // A tick costs what its unread posts cost: not those of `general`, which has 1500 members.
        world.sql("update channel set marked_n = next_n - 1").await;
        few! { &world, round, many,
            // Each round posts in another channel, which has two members.
            storm::Due: {},
            channel::Post: { "channel": "quiet-ROUND", "body": "look", "author": "lead", "key": "wake-ROUND" },
            storm::Due: {},
            storm::Tick: {},
            storm::Tick: {},
            storm::Due: {},
            storm::Show: { "limit": 5 },
            storm::Why: { "channel": "quiet-ROUND", "agent": "bob" },
            agent::Poll: { "agent": "bob", "run": "wakeup-ROUND", "accept": ["unread_wakeup"] },
            run::Settle: { "run": "wakeup-ROUND" },
        }
    }
    assert!(many.is_empty(), "{many:#?}");
}
