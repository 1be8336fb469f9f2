use fencepost::{Code, task};
use fencepost_testing::{World, on_both, world::code};

on_both! {
    async fn a_task_is_added_claimed_and_completed(world: World) {
        let first = world.add("first").await;
        let second = world.add_after("second", &[&first]).await;
        assert_eq!((first.as_str(), second.as_str()), ("auth-1", "auth-2"));
        let token = world.claim_next("r1").await.unwrap();
        assert_eq!(token, "task/auth-1@1");
        assert_eq!(code(world.claim_next("r2").await), Code::NoneReady);
        let done = task::Done { token: token.clone(), output: Some("built".into()) };
        assert_eq!(world.fleet.call(done).await.unwrap().task.status, task::Status::Completed);
        let claimed = world.fleet.call(task::Claim::next("auth", "r2")).await.unwrap();
        assert_eq!(claimed.claim.token, "task/auth-2@1");
        assert_eq!(claimed.task.after[0].output.as_deref(), Some("built"));
        world.done("task/auth-2@1").await.unwrap();
        assert_eq!(code(world.claim_next("r1").await), Code::BoardFinished);
    }

    async fn a_dead_holders_task_comes_back(world: World) {
        let id = world.add("first").await;
        let old = world.claim(&id, "a").await.unwrap();
        world.pass(31);
        let new = world.claim(&id, "b").await.unwrap();
        assert_eq!((old.as_str(), new.as_str()), ("task/auth-1@1", "task/auth-1@2"));
        assert_eq!(code(world.done(&old).await), Code::LeaseExpired);
        world.done(&new).await.unwrap();
    }
}
