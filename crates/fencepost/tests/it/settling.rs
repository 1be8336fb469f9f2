//! A trigger's run: what is told of it, and that it is settled once.

use crate::on_both;
use fencepost::{Code, agent, run};

on_both! {
    /// The same again is the first answer; another is refused. What came later under the same name is left alone.
    async fn a_run_is_settled_once(world: World) {
        world.story("
            agent/join bob                                 -> agent.name=bob
            add mine to=bob                                -> auth-1
            add next                                       -> auth-2
            agent/poll bob run=b1                          -> claims=task/auth-1@1
            run/settle b1                                  -> settled=task/auth-1@1
            run/settle b1 outcome=failed reason=x          -> refused already_finished
            run/settle b1                                  -> settled=task/auth-1@1 run.reason=done
            claim auth-2 run=b1                            -> task/auth-2@1
            run/settle b1                                  -> refused invalid
            guard task/auth-2@1                            -> reason=ok
        ").await;
        assert_eq!(world.times("task.completed").await, 1);
    }

    async fn a_run_says_what_it_was_given_and_what_came_of_it(world: World) {
        world.story("
            agent/join bob                                 -> agent.name=bob
            add mine to=bob                                -> auth-1
        ").await;
        let poll = agent::Poll {
            agent: "bob".into(), run: "b1".into(), host: Some("here".into()), ..Default::default()
        };
        world.fleet.call(poll).await.expect("a trigger");
        let runs = world.fleet.call(run::List::default()).await.expect("the runs").runs;
        let run = &runs[0];
        assert_eq!((run.trigger.as_deref(), run.host.as_deref()), (Some("task_assigned"), Some("here")));
        assert_eq!((run.holds, run.claims.as_slice()), (1, ["task/auth-1@1".to_owned()].as_slice()));
        let agents = world.fleet.call(agent::List::default()).await.expect("the agents").agents;
        assert_eq!(agents[0].runs[0].claims, ["task/auth-1@1"]);
        let cost = serde_json::json!({ "usd": 0.12 });
        let settle = run::Settle {
            run: "b1".into(), exit: Some("0".into()), cost: Some(cost.clone()), ..Default::default()
        };
        let told = world.fleet.call(settle.clone()).await.expect("settled").run;
        let again = world.fleet.call(settle).await.expect("the same").run;
        assert_eq!(told, again);
        assert_eq!((told.exit.as_deref(), told.cost, told.holds), (Some("0"), Some(cost), 0));
        let gone = run::Settle { run: "nobody".into(), ..Default::default() };
        assert_eq!(world.fleet.call(gone).await.expect_err("no such run").code(), Code::NotFound);
    }
}
