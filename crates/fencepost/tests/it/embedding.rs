//! Embedded use: several ops and the embedder's own SQL in one transaction.

use fencepost::{Code, Result, claim, lock, params, run, task};
use fencepost_testing::{
    World, on_both,
    world::{code, refused},
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

async fn table(world: &World) {
    let table = world.fleet.transaction(|tx| {
        Box::pin(async move { tx.execute("create table charge (cents bigint)", params![]).await })
    });
    table.await.unwrap();
}

async fn charges(world: &World) -> i64 {
    let count = world.fleet.transaction(|tx| {
        Box::pin(
            async move { tx.query("select count(*) as n from charge", params![]).await?[0].get::<i64>("n") },
        )
    });
    count.await.unwrap()
}

/// Completes a task and writes a row of the embedder's in the same transaction.
async fn charge(world: &World, token: &str, output: Option<&str>) -> Result<task::Task> {
    let done = task::Done { token: token.into(), output: output.map(str::to_owned) };
    world
        .fleet
        .transaction(move |tx| {
            let done = done.clone();
            Box::pin(async move {
                tx.execute("insert into charge(cents) values (?1)", params![1999]).await?;
                Ok(tx.call(done).await?.task)
            })
        })
        .await
}

on_both! {
    /// Literals, quoted names and comments in an embedder's SQL are passed on unchanged.
    async fn literals_and_comments_are_left_alone(world: World) {
        let asked = world.fleet.transaction(|tx| {
            Box::pin(async move {
                let rows = tx
                    .query(
                        "select 'why?' as a, 'what ?1' as b, /* a note, ?1 */ cast(?1 as text) as c, -- and ?2
                           'it''s json_each(?)' as \"d?1\"",
                        params!["yes"],
                    )
                    .await?;
                ["a", "b", "c", "d?1"].iter().map(|column| rows[0].get(column)).collect::<Result<Vec<String>>>()
            })
        });
        assert_eq!(asked.await.unwrap(), ["why?", "what ?1", "yes", "it's json_each(?)"]);
    }

    async fn a_transaction_commits_all_or_nothing(world: World) {
        table(&world).await;
        let whole = world.fleet.transaction(|tx| Box::pin(async move {
            let first = tx.call(task::Add::new("auth", "first")).await?.task.id;
            tx.call(task::Add { after: vec![first.clone()], ..task::Add::new("auth", "second") }).await?;
            tx.execute("insert into charge(cents) values (?1)", params![1]).await?;
            let token = tx.call(task::Claim::of(first, "r")).await?.claim.token;
            tx.call(task::Done { token, output: Some("built".into()) }).await?;
            tx.call(lock::Claim::new("deploy", "r")).await?;
            tx.call(task::Claim::next("auth", "r")).await
        }));
        let claimed = whole.await.unwrap();
        assert_eq!(claimed.task.after[0].output.as_deref(), Some("built"));
        assert_eq!((claimed.claim.token.as_str(), charges(&world).await), ("task/auth-2@1", 1));

        let (log, events) = (world.log().await, world.log().await.len());
        let broken = world.fleet.transaction(|tx| Box::pin(async move {
            tx.call(task::Add::new("auth", "third")).await?;
            tx.execute("insert into charge(cents) values (?1)", params![2]).await?;
            tx.call(task::Done::new("task/auth-2@1")).await?;
            tx.call(task::Done::new("task/auth-1@9")).await
        }));
        assert_eq!(code(broken.await), Code::NotFound);
        assert_eq!((world.log().await, charges(&world).await), (log, 1));
        assert_eq!(world.guard("task/auth-2@1").await, claim::Verdict::Ok);
        assert_eq!(world.log().await.len(), events);
        world.story("
            list  -> tasks=auth-1,auth-2
            ready -> tasks=none
        ").await;
    }

    async fn a_refused_op_is_undone_and_the_rest_goes_on(world: World) {
        table(&world).await;
        world.story("
            add one            -> auth-1
            add two            -> auth-2
            claim auth-1 run=a -> task/auth-1@1
        ").await;
        let mixed = world.fleet.transaction(|tx| Box::pin(async move {
            tx.execute("insert into charge(cents) values (?1)", params![1]).await?;
            let mut codes = Vec::new();
            codes.push(tx.call(task::Claim::of("auth-1", "new")).await.unwrap_err().code());
            codes.push(tx.call(task::Add::new("auth", "")).await.unwrap_err().code());
            codes.push(tx.call(task::Add { after: vec!["auth-9".into()], ..task::Add::new("fresh", "x") }).await.unwrap_err().code());
            let bad = task::Add { request: Some("\0".into()), ..task::Add::new("auth", "x") };
            codes.push(tx.call(bad).await.unwrap_err().code());
            codes.push(tx.call(task::Claim::of("auth-2", "a b")).await.unwrap_err().code());
            tx.execute("insert into charge(cents) values (?1)", params![2]).await?;
            tx.call(task::Claim::of("auth-2", "b")).await?;
            Ok(codes)
        }));
        assert_eq!(mixed.await.unwrap(), [
            Code::AlreadyClaimed, Code::Invalid, Code::NotFound, Code::Invalid, Code::Invalid,
        ]);
        assert_eq!(charges(&world).await, 2);
        let boards = world.fleet.call(fencepost::board::List {}).await.unwrap().boards;
        assert_eq!(boards.len(), 1, "the board of a refused task is gone with it");
        let runs = world.fleet.call(run::List { run: None, all: true, limit: None }).await.unwrap().runs;
        assert_eq!(runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        world.story("show auth-2 -> in_progress claim.run=b").await;
    }

    async fn a_repeated_completion_rolls_back_the_transaction(world: World) {
        table(&world).await;
        world.add("one").await;
        let token = world.claim("auth-1", "r").await.unwrap();
        assert_eq!(charge(&world, &token, Some("paid")).await.unwrap().status, task::Status::Completed);
        let again = refused(charge(&world, &token, Some("paid")).await);
        assert_eq!((again.code(), again.field("repeat")), (Code::AlreadyFinished, Some(&true.into())));
        let other = refused(charge(&world, &token, Some("not paid")).await);
        assert_eq!((other.code(), other.field("repeat")), (Code::AlreadyFinished, None));
        assert_eq!(charges(&world).await, 1);
        let alone = task::Done { token, output: Some("paid".into()) };
        assert_eq!(world.fleet.call(alone).await.unwrap().task.status, task::Status::Completed);
    }

    async fn a_dead_claim_rolls_back_the_transaction(world: World) {
        table(&world).await;
        world.add("one").await;
        let token = world.claim("auth-1", "r").await.unwrap();
        world.pass(30);
        assert_eq!(code(charge(&world, &token, None).await), Code::LeaseExpired);
        let second = world.claim("auth-1", "s").await.unwrap();
        assert_eq!(code(charge(&world, &token, None).await), Code::LeaseExpired);
        charge(&world, &second, None).await.unwrap();
        assert_eq!(charges(&world).await, 1);
    }

    /// The fleet survives an error or a panic of the embedder.
    async fn an_embedders_error_rolls_back(world: World) {
        table(&world).await;
        let failed = world.fleet.transaction(|tx| Box::pin(async move {
            tx.execute("insert into charge(cents) values (?1)", params![1]).await?;
            tx.call(task::Add::new("auth", "one")).await?;
            tx.execute("insert into nowhere(x) values (?1)", params![1]).await
        }));
        assert_eq!(code(failed.await), Code::Internal);
        assert_eq!((charges(&world).await, world.log().await.len()), (0, 0));
        assert_eq!(world.add("one").await, "auth-1");
    }

    async fn expiry_runs_inside_a_transaction_too(world: World) {
        world.add("one").await;
        world.claim("auth-1", "dies").await.unwrap();
        world.pass(30);
        let claimed = world.fleet.transaction(|tx| Box::pin(async move {
            Ok(tx.call(task::Claim::next("auth", "lives")).await?.claim.token)
        }));
        assert_eq!(claimed.await.unwrap(), "task/auth-1@2");
    }
}

mod on_postgres {
    use super::*;

    /// After a serialization failure the whole closure runs again, in a new transaction.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_serialization_failure_runs_the_closure_again() {
        let world = World::postgres().await;
        table(&world).await;
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        let added = world.fleet.transaction(move |tx| {
            let first = counted.fetch_add(1, Ordering::SeqCst) < 2;
            Box::pin(async move {
                tx.execute("insert into charge(cents) values (?1)", params![1]).await?;
                let id = tx.call(task::Add::new("auth", "one")).await?.task.id;
                if first {
                    let raise = "do $$ begin raise 'again' using errcode = '40001'; end $$";
                    tx.execute(raise, params![]).await?;
                }
                Ok(id)
            })
        });
        assert_eq!(added.await.unwrap(), "auth-1");
        assert_eq!((tries.load(Ordering::SeqCst), charges(&world).await), (3, 1));
        world.assert_sound().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn retries_are_bounded() {
        let world = World::postgres().await;
        let tries = Arc::new(AtomicU32::new(0));
        let counted = tries.clone();
        let never = world.fleet.transaction(move |tx| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                tx.execute("do $$ begin raise 'no' using errcode = '40P01'; end $$", params![]).await
            })
        });
        assert_eq!(code(never.await), Code::Unavailable);
        assert_eq!(tries.load(Ordering::SeqCst), 10);
    }

    /// Two transactions lock in opposite order: PostgreSQL aborts one, it is retried, and both succeed.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_deadlock_of_embedders_is_survived() {
        let world = World::postgres().await;
        table(&world).await;
        let setup = world.fleet.transaction(|tx| {
            Box::pin(async move { tx.execute("insert into charge(cents) values (1), (2)", params![]).await })
        });
        setup.await.unwrap();
        let both = Arc::new(tokio::sync::Barrier::new(2));
        let tries = Arc::new(AtomicU32::new(0));
        let swap = |first: i64| {
            let (fleet, both, tries) = (world.fleet.clone(), both.clone(), tries.clone());
            tokio::spawn(async move {
                let waited = Arc::new(AtomicU32::new(0));
                let work = fleet.transaction(move |tx| {
                    let (both, waited) = (both.clone(), waited.clone());
                    tries.fetch_add(1, Ordering::SeqCst);
                    Box::pin(async move {
                        let lock = "select cents from charge where cents = ?1 for update";
                        tx.query(lock, params![first]).await?;
                        if waited.fetch_add(1, Ordering::SeqCst) == 0 {
                            both.wait().await;
                        }
                        tx.query(lock, params![3 - first]).await?;
                        Ok(tx.call(task::Add::new("auth", "one")).await?.task.id)
                    })
                });
                work.await
            })
        };
        let (one, two) = (swap(1), swap(2));
        let mut ids = [one.await.unwrap().unwrap(), two.await.unwrap().unwrap()];
        ids.sort();
        assert_eq!(ids, ["auth-1", "auth-2"]);
        // PostgreSQL aborts one of them. If it locks its first row again before the other gets its second, they deadlock again.
        let tries = tries.load(Ordering::SeqCst);
        assert!(tries >= 3, "they did not meet: {tries} tries");
        world.assert_sound().await;
    }
}
