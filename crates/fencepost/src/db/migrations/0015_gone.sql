-- `given_back`: how often the task's attempt was given back because the terminal or agent that held it was gone.
alter table task add column given_back integer not null default 0;
-- Mentions are found whatever the capitals: `@Lead` is `lead`.
create index agent_folded on agent(lower(name)) where left_at is null;
create index reader_folded on reader((channel || '/' || lower(agent))) where member = 1;
