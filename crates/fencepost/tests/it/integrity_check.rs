//! The integrity check can fail: each test breaks one promise by hand, and exactly that one is reported.

use fencepost::{Code, Error, admin, lock, loops, once, params, task};
use fencepost_testing::{World, world::refused};

/// A promise of the check, and SQL that breaks it and no other.
const BREAKS: &[(&str, &[&str], &str)] = &[
    (
        "an effect is running while a run holds it, and only then",
        &["update effect set status = 'unused' where name = 'mail'"],
        "once/mail",
    ),
    (
        "an effect is running while a run holds it, and only then",
        &["update effect set run = null where name = 'mail'"],
        "once/mail",
    ),
    (
        "an effect that succeeded or failed says by whom and how",
        &["update effect set source = null where name = 'sent'"],
        "once/sent",
    ),
    (
        "an effect that succeeded or failed says by whom and how",
        &["update effect set exit_code = 1 where name = 'sent'"],
        "once/sent",
    ),
    (
        "an effect that succeeded or failed says by whom and how",
        &["update effect set status = 'failed' where name = 'sent'"],
        "once/sent",
    ),
    (
        "an effect in doubt has a reason",
        &["update effect set status = 'in_doubt' where name = 'sent'"],
        "once/sent",
    ),
    (
        "only an effect that is unused, failed or in doubt is begun",
        &["update effect set was = 'succeeded' where name = 'mail'"],
        "once/mail",
    ),
    (
        "a task is held exactly while it is reviewing or in progress",
        &["update task set status = 'unassigned' where seq = 1"],
        "task/auth-1",
    ),
    (
        "a task is held exactly while it is reviewing or in progress",
        &["update task set status = 'in_progress' where seq = 2"],
        "task/auth-2",
    ),
    (
        "a held task has a claim time, and a free task has no claim",
        &["update task set claimed_at = null where seq = 1"],
        "task/auth-1",
    ),
    (
        "a held task has a claim time, and a free task has no claim",
        &["update task set until_at = 99999999999999 where seq = 2"],
        "task/auth-2",
    ),
    ("every claim's run exists", &["update task set run = 999 where seq = 1"], "task/auth-1"),
    ("every claim's run exists", &["update message set run = 999 where id = 1"], "message/1"),
    ("every claim's run exists", &["update reader set run = 999 where agent = 'bob'"], "mentions/bob/c"),
    ("every claim's run exists", &["update lock set run = 999"], "lock/deploy"),
    ("every claim's run exists", &["update effect set run = 999 where name = 'mail'"], "once/mail"),
    (
        "an ended run that is settled holds nothing",
        &["update run set ended_at = 1, settled = 1 where name = 'worker'"],
        "task/auth-1",
    ),
    (
        "an ended run that is settled holds nothing",
        &["update run set ended_at = 1, settled = 1 where name = 'locker'"],
        "lock/deploy",
    ),
    (
        "an ended run that is settled holds nothing",
        &["update run set ended_at = 1, settled = 1 where name = 'poller'"],
        "mentions/bob/c",
    ),
    (
        "an ended run that is settled holds nothing",
        &["update run set ended_at = 1, settled = 1 where name = 'mailer'"],
        "message/1",
    ),
    (
        "at most one run of a name has not ended",
        &[
            "drop index run_unended",
            "insert into run(name, ttl_ms, opened_at, expires_at) select name, ttl_ms, opened_at, expires_at
             from run where name = 'idle'",
        ],
        "run/idle",
    ),
    (
        "every claimed item has a fence",
        &["delete from event where kind = 'task.claimed'", "update task set fence = 0 where seq = 1"],
        "task/auth-1",
    ),
    (
        "every claimed item has a fence",
        &["delete from event where kind = 'lock.claimed'", "update lock set fence = 0"],
        "lock/deploy",
    ),
    (
        "every claimed item has a fence",
        &["delete from event where kind = 'message.claimed'", "update message set fence = 0 where id = 1"],
        "message/1",
    ),
    (
        "every claimed item has a fence",
        &[
            "delete from event where kind = 'mentions.claimed'",
            "update reader set fence = 0 where agent = 'bob'",
        ],
        "mentions/bob/c",
    ),
    (
        "no fence was issued twice",
        &["insert into event(at, kind, resource, fence) values (1, 'task.claimed', 'task/auth-1', 1)"],
        "task/auth-1",
    ),
    (
        "no fence was issued twice",
        &["insert into event(at, kind, resource, fence) values (1, 'lock.claimed', 'lock/deploy', 1)"],
        "lock/deploy",
    ),
    (
        "no fence was issued twice",
        &["insert into event(at, kind, resource, fence) values (1, 'message.claimed', 'message/1', 1)"],
        "message/1",
    ),
    (
        "no fence was issued twice",
        &["insert into event(at, kind, resource, fence) values (1, 'mentions.claimed', 'mentions/bob/c', 1)"],
        "mentions/bob/c",
    ),
    (
        "no claim has a fence above its item's",
        &["insert into event(at, kind, resource, fence) values (1, 'mentions.claimed', 'mentions/bob/c', 9)"],
        "mentions/bob/c",
    ),
    (
        "no claim has a fence above its item's",
        &["insert into event(at, kind, resource, fence) values (1, 'task.claimed', 'task/auth-1', 9)"],
        "task/auth-1",
    ),
    (
        "no claim has a fence above its item's",
        &["insert into event(at, kind, resource, fence) values (1, 'lock.claimed', 'lock/deploy', 9)"],
        "lock/deploy",
    ),
    (
        "no claim has a fence above its item's",
        &["insert into event(at, kind, resource, fence) values (1, 'message.claimed', 'message/1', 9)"],
        "message/1",
    ),
    (
        "a task was completed at most once",
        &["insert into event(at, kind, resource, fence) values (1, 'task.completed', 'task/auth-4', 1)"],
        "task/auth-4",
    ),
    (
        "the count of a task's unfinished dependencies is right",
        &["update task set waiting_on = 2 where seq = 3"],
        "task/auth-3",
    ),
    (
        "the count of a task's unfinished dependencies is right",
        &["delete from edge", "update task_tag set ready = 0"],
        "task/auth-3",
    ),
    (
        "both ends of every dependency exist",
        &["insert into edge(task, depends_on) values (2, 999)"],
        "edge 2 after 999",
    ),
    (
        "both ends of every dependency exist",
        &["insert into edge(task, depends_on) values (999, 2)"],
        "edge 999 after 2",
    ),
    (
        "a finished task has a finish time, and no other does",
        &["update task set finished_at = null where seq = 4"],
        "task/auth-4",
    ),
    (
        "a finished task has a finish time, and no other does",
        &["update task set finished_at = 1 where seq = 2"],
        "task/auth-2",
    ),
    (
        "an assigned task has an assignee, and an offered task has its agent",
        &["update task set assignee = null where seq = 5"],
        "task/auth-5",
    ),
    (
        "an assigned task has an assignee, and an offered task has its agent",
        &["update task set offered_to = null where seq = 6"],
        "task/auth-6",
    ),
    (
        "an assigned task has an assignee, and an offered task has its agent",
        &["update task set assignee = 'bob' where seq = 2"],
        "task/auth-2",
    ),
    ("every task has its text", &["delete from task_doc where task = 2"], "task/auth-2"),
    (
        "no number is used beyond its board's counter",
        &["update board set next_n = 6 where name = 'auth'"],
        "task/auth-6",
    ),
    ("no number is used beyond its board's counter", &["delete from board where name = 'web'"], "task/web-1"),
    ("every tag agrees with its task", &["update task_tag set ready = 1 where task = 3"], "task/auth-3"),
    ("every tag agrees with its task", &["update task_tag set priority = 1 where task = 3"], "task/auth-3"),
    ("every tag agrees with its task", &["update task_tag set board = 'web' where task = 3"], "task/auth-3"),
    ("every tag of a task has its row", &["delete from task_tag"], "task/auth-3"),
    (
        "every tag of a task has its row",
        &["insert into task_tag(task, tag, board, priority, ready) values (3, 'y', 'auth', 50, 0)"],
        "task/auth-3",
    ),
    ("every row of a task has its task", &["insert into task_doc(task) values (999)"], "task_doc 999"),
    (
        "every row of a task has its task",
        &["insert into task_tag(task, tag, board, priority, ready) values (999, 'y', 'auth', 50, 0)"],
        "task_tag 999",
    ),
    (
        "every row of a task has its task",
        &["insert into note(task, kind, at, body) values (999, 'note', 1, 'x')"],
        "note 999",
    ),
    ("attempts stay within their limits", &["update task set attempts = 4 where seq = 1"], "task/auth-1"),
    ("attempts stay within their limits", &["update task set attempts = -1 where seq = 2"], "task/auth-2"),
    ("attempts stay within their limits", &["update message set attempts = 4 where id = 1"], "message/1"),
    (
        "a message is held exactly while it is processing",
        &["update message set status = 'pending' where id = 1"],
        "message/1",
    ),
    (
        "a message is held exactly while it is processing",
        &["update message set claimed_at = null where id = 1"],
        "message/1",
    ),
    (
        "a message is held exactly while it is processing",
        &["update message set until_at = 99999999999999 where id = 2"],
        "message/2",
    ),
    (
        "a message has a finishing time and a removal time exactly if it is finished",
        &["update message set finished_at = null, prune_at = null where id = 3"],
        "message/3",
    ),
    (
        "a message has a finishing time and a removal time exactly if it is finished",
        &["update message set prune_at = 1 where id = 2"],
        "message/2",
    ),
    (
        "a message was completed at most once",
        &["insert into event(at, kind, resource, fence) values (1, 'message.completed', 'message/3', 1)"],
        "message/3",
    ),
    (
        "outputs belong to the claim that completed their message",
        &["update message_output set fence = 9"],
        "message/3",
    ),
    (
        "outputs belong to the claim that completed their message",
        &["insert into message_output(message, n, fence, output) values (2, 0, 1, '1')"],
        "message/2",
    ),
    (
        "every message has its texts, and a completed one has no payload, except in an inbox",
        &["update message_doc set payload = '1' where message = 3"],
        "message/3",
    ),
    (
        "every message has its texts, and a completed one has no payload, except in an inbox",
        &["delete from message_doc where message = 2"],
        "message/2",
    ),
    (
        "every message has its texts, and a completed one has no payload, except in an inbox",
        &["insert into message_doc(message) values (999)"],
        "message_doc 999",
    ),
    (
        "every message has a mailbox, and a lane exactly if the mailbox is strict",
        &["update message set mailbox = 'none' where id = 2"],
        "message/2",
    ),
    (
        "every message has a mailbox, and a lane exactly if the mailbox is strict",
        &["update message set behind = 1 where id = 2"],
        "message/2",
    ),
    (
        "held mentions have a claim with its time and its last post",
        &["update reader set claimed_at = null where agent = 'bob'"],
        "mentions/bob/c",
    ),
    (
        "held mentions have a claim with its time and its last post",
        &["update reader set given_n = 1 where agent = 'eve'"],
        "mentions/eve/c",
    ),
    (
        "a reader row has its last mention, and a waiting time exactly if one is unread",
        &["update reader set mentioned_n = 9 where agent = 'eve'"],
        "mentions/eve/c",
    ),
    (
        "a reader row has its last mention, and a waiting time exactly if one is unread",
        &["update reader set since = null where agent = 'eve'"],
        "mentions/eve/c",
    ),
    (
        "every mention has its post and its reader row",
        &["insert into mention(agent, channel, n, at) values ('nobody', 'c', 1, 1)"],
        "mentions/nobody/c",
    ),
    (
        "every mention has its post and its reader row",
        &[
            "insert into mention(agent, channel, n, at) values ('eve', 'c', 7, 1)",
            "update reader set mentioned_n = 7 where agent = 'eve'",
        ],
        "mentions/eve/c",
    ),
    (
        "a run with a trigger has an agent and the list of its claims",
        &["update run set given = null where name = 'poller'"],
        "run/poller",
    ),
    (
        "a run with a trigger has an agent and the list of its claims",
        &["update run set agent = null where name = 'poller'"],
        "run/poller",
    ),
    (
        "every agent that has not left has a deadline for going silent",
        &["update agent set strands_at = null where name = 'bob'"],
        "agent/bob",
    ),
    (
        "posts are numbered without a gap, and no cursor is past the last one",
        &["update channel set next_n = next_n + 1 where name = 'c'"],
        "channel/c",
    ),
    (
        "posts are numbered without a gap, and no cursor is past the last one",
        &["update reader set read_n = 3 where agent = 'idle'"],
        "channel/c",
    ),
    (
        "an agent has at most one unfinished wake-up in a channel, in its own mailbox",
        &[
            "insert into wakeup(agent, channel, n, message, at, cause, root, depth) values ('bob', 'c', 1, 2, 1, 'x', 'x', 0)",
        ],
        "message/2",
    ),
    (
        "an agent has at most one unfinished wake-up in a channel, in its own mailbox",
        &[
            "insert into mailbox(name, created_at) values ('wakeups/bob', 1)",
            "update message set mailbox = 'wakeups/bob' where id in (1, 2)",
            "insert into wakeup(agent, channel, n, message, at, cause, root, depth) values ('bob', 'c', 1, 1, 1, 'x', 'x', 0)",
            "insert into wakeup(agent, channel, n, message, at, cause, root, depth) values ('bob', 'c', 2, 2, 1, 'x', 'x', 0)",
        ],
        "mentions/bob/c",
    ),
    (
        "no mark of an unread post is past the last post",
        &["update channel set marked_n = next_n where name = 'c'"],
        "channel/c",
    ),
    (
        "no mark of an unread post is past the last post",
        &["update reader set wake_n = 9 where agent = 'idle'"],
        "mentions/idle/c",
    ),
    (
        "every delivery from outside became a message",
        &["insert into delivery(source, id, at) values ('slack', 'Ev1', 1)"],
        "delivery/slack/Ev1",
    ),
    (
        "every lane has exactly one unfinished message that comes first",
        &["update message set behind = 0 where id = 5"],
        "mailbox/strict",
    ),
    (
        "every lane has exactly one unfinished message that comes first",
        &["update message set behind = 1 where id = 4"],
        "mailbox/strict",
    ),
    (
        "every story of an active loop has its task, and a loop has an end if and only if it is not active",
        &["update story set task = 999 where loop = 'l' and id = 'b'"],
        "loop/l/b",
    ),
    (
        "every story of an active loop has its task, and a loop has an end if and only if it is not active",
        &["update loop set status = 'finished' where id = 'l'"],
        "loop/l",
    ),
    (
        "no story of a loop that is over is held",
        &["update loop set status = 'finished', ended_at = 1 where id = 'l'"],
        "task/l-1",
    ),
    (
        "every recorded step has its story",
        &["update story_step set story = 'z' where loop = 'l'"],
        "loop/l/z",
    ),
];

/// A sample: tasks that are held, free, blocked, tagged, completed, assigned, offered and on another board; a lock;
/// messages that are held, free, completed and in a lane.
async fn stage(world: &World) {
    world
        .story(
            "
        add held                      -> auth-1
        add free                      -> auth-2
        add blocked after=auth-2 tags=x -> auth-3
        add completed                 -> auth-4
        add pending to=bob            -> auth-5
        add offered offer=bob         -> auth-6
        add other board=web           -> web-1
        claim auth-1 run=worker       -> task/auth-1@1
        claim auth-4 run=idle         -> task/auth-4@1
        done task/auth-4@1            -> completed
        mail/push s payload=held      -> id=1
        mail/push s payload=free      -> id=2
        mail/push done payload=x      -> id=3
        mail/configure strict strict=true -> settings.strict=true
        mail/push strict payload=head -> id=4
        mail/push strict payload=next -> id=5
        mail/claim s run=mailer       -> claims=message/1@1
        mail/claim done run=idle      -> claims=message/3@1
        mail/done message/3@1 outputs=x -> processed
        agent/join bob                -> agent.name=bob
        agent/join eve                -> agent.name=eve
        channel/create c              -> existing=false
        channel/join c agent=idle     -> agent=idle
        channel/post c body=hi author=x -> post.n=1
        channel/post c body=@bob,@eve author=x -> post.n=2
        agent/poll bob run=poller accept=unread_mentions -> claims=mentions/bob/c@1
    ",
        )
        .await;
    world.fleet.call(lock::Claim::new("deploy", "locker")).await.unwrap();
    let story = |id: &str| loops::Story { id: id.into(), title: id.into(), ..loops::Story::default() };
    let stories = vec![story("a"), story("b")];
    world.fleet.call(loops::Start { id: "l".into(), stories, ..loops::Start::default() }).await.unwrap();
    world
        .fleet
        .call(loops::Next { id: "l".into(), run: "chain".into(), ..loops::Next::default() })
        .await
        .unwrap();
    let step = loops::Step { token: "task/l-1@1".into(), name: "plan".into(), ..loops::Step::default() };
    world.fleet.call(step).await.unwrap();
    world.fleet.call(once::Begin::new("mail", "./send", "sender")).await.unwrap();
    let sent = world.fleet.call(once::Begin::new("sent", "./send", "sender")).await.unwrap().claim.unwrap();
    world.fleet.call(once::Finish::new(sent.token)).await.unwrap();
    world.assert_sound().await;
}

async fn execute(world: &World, statements: &'static [&'static str]) {
    let broken = world.fleet.transaction(move |tx| {
        Box::pin(async move {
            for statement in statements {
                tx.execute(statement, params![]).await?;
            }
            Ok(())
        })
    });
    broken.await.unwrap();
}

/// The report of the check after these statements, which are rolled back.
async fn broken(world: &World, statements: &'static [&'static str]) -> admin::check::Report {
    let (tell, told) = std::sync::mpsc::channel();
    let undone = world.fleet.transaction(move |tx| {
        let tell = tell.clone();
        Box::pin(async move {
            for statement in statements {
                tx.execute(statement, params![]).await?;
            }
            tell.send(tx.call(admin::Check {}).await?).expect("it is awaited");
            Err::<(), _>(Error::new(Code::Invalid, "undone"))
        })
    });
    assert_eq!(refused(undone.await).message(), "undone", "{statements:?}");
    told.recv().expect("a report")
}

async fn breaks(world: World) {
    stage(&world).await;
    for (promise, statements, resource) in BREAKS {
        let report = broken(&world, statements).await;
        let expected = [admin::check::Violation { promise: (*promise).into(), resource: (*resource).into() }];
        assert_eq!((report.ok, report.violations.as_slice()), (false, expected.as_slice()), "{statements:?}");
    }
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_can_break_on_sqlite() {
    breaks(World::sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_promise_can_break_on_postgres() {
    breaks(World::postgres().await).await;
}

/// A promise that is not broken here has never been seen to fail.
#[tokio::test]
async fn every_promise_has_a_break() {
    let world = World::sqlite().await;
    let mut promises: Vec<_> = BREAKS.iter().map(|(promise, ..)| promise).collect();
    promises.dedup();
    assert_eq!(world.fleet.call(admin::Check {}).await.unwrap().checked, promises.len());
}

/// The report lists only some of the rows that break a promise, so that it stays readable.
#[tokio::test]
async fn a_report_stays_readable() {
    let world = World::sqlite().await;
    let tasks = (0..50).map(|n| task::plan::Item { title: format!("t{n}"), ..Default::default() }).collect();
    world.fleet.call(task::Plan { tasks, ..task::Plan::default() }).await.unwrap();
    execute(&world, &["update task set waiting_on = 7"]).await;
    assert_eq!(world.fleet.call(admin::Check {}).await.unwrap().violations.len(), 20);
}
