//! A database in which another user has made operators, functions, types and views with the names of the built-in ones.

use std::time::Duration;

use lockkeeper::transactions::{CommitIn as _, LockInTransaction as _};
use lockkeeper::{LockKeeper, LockName};
use lockkeeper_core::{Clock as _, HostInstant, Severity, SystemClock};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer, cases};
use postgres::{Client, Error, NoTls};

pub(crate) const CASES: &[Case<PostgresKind>] = cases![objects_of_other_users_are_never_run,];

/// Each hostile object calls `trap`, which counts in a sequence: a rollback does not undo that.
///
/// For every two of the types there is every operator, so each one that a statement names without its schema has an exact
/// match. The views have the columns of those that they replace.
const TRAPS: &str = r#"
CREATE SCHEMA app;
GRANT ALL ON SCHEMA app, public TO public;
CREATE SEQUENCE app.trapped;
GRANT ALL ON SEQUENCE app.trapped TO public;
CREATE FUNCTION app.trap(what pg_catalog.text) RETURNS bool LANGUAGE plpgsql VOLATILE AS
  $f$ BEGIN PERFORM pg_catalog.nextval('app.trapped'); RAISE WARNING 'trapped: %', what; RETURN true; END $f$;
DO $do$
DECLARE
  types text[] := ARRAY['int4', 'int8', 'float8', 'numeric', 'oid', 'text', 'name', 'bool', 'timestamptz', 'interval'];
  hostile record; l text; r text; op text; id int := 0;
BEGIN
  FOREACH op IN ARRAY ARRAY['=', '<>', '<', '<=', '>', '>=', '+', '-', '*', '/', '||', '&', '|', '>>', '<<'] LOOP
    FOREACH l IN ARRAY types LOOP FOREACH r IN ARRAY types LOOP
      id := id + 1;
      EXECUTE format('CREATE FUNCTION app.op%s(pg_catalog.%I, pg_catalog.%I) RETURNS pg_catalog.%s LANGUAGE plpgsql AS $f$ BEGIN PERFORM app.trap(%L); RETURN NULL; END $f$',
        id, l, r, CASE WHEN op IN ('=', '<>', '<', '<=', '>', '>=') THEN 'bool' WHEN op = '||' THEN 'text' ELSE l END, op);
      EXECUTE format('CREATE OPERATOR public.%s (FUNCTION = app.op%s, LEFTARG = pg_catalog.%I, RIGHTARG = pg_catalog.%I)', op, id, l, r);
    END LOOP; END LOOP;
  END LOOP;
  FOR hostile IN SELECT p.oid, proname, pg_get_function_identity_arguments(p.oid) AS takes, pg_get_function_result(p.oid) AS gives
    FROM pg_proc AS p WHERE pronamespace = 'pg_catalog'::regnamespace AND prokind = 'f'
    AND (proname ~ '^pg_(try_)?advisory' OR proname IN ('date_part', 'now', 'clock_timestamp', 'pg_backend_pid', 'set_config',
      'current_setting', 'pg_is_in_recovery', 'pg_postmaster_start_time', 'pg_control_system', 'pg_has_role', 'host',
      'pg_terminate_backend', 'pg_stat_get_bgwriter_stat_reset_time', 'current_database', 'current_user'))
    AND NOT proargtypes::oid[] && ARRAY['"any"'::regtype::oid, 'anyarray'::regtype::oid, 'anyelement'::regtype::oid]
  LOOP
    EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS $f$ BEGIN PERFORM app.trap(%L); %s; END $f$',
      hostile.proname, regexp_replace(hostile.takes, 'OUT [^,]*(, )?', '', 'g'),
      CASE hostile.proname WHEN 'pg_control_system' THEN 'SETOF record' ELSE hostile.gives END, hostile.proname,
      CASE WHEN hostile.gives IN ('void', 'record') THEN 'RETURN' ELSE 'RETURN NULL' END);
  END LOOP;
END $do$;
CREATE FUNCTION app.counted(int8) RETURNS int8 LANGUAGE plpgsql AS $f$ BEGIN PERFORM app.trap('count'); RETURN 1; END $f$;
CREATE FUNCTION app.counted_text(int8, text) RETURNS int8 LANGUAGE sql AS 'SELECT app.counted($1)';
CREATE AGGREGATE public.count(*) (SFUNC = app.counted, STYPE = int8, INITCOND = '1');
CREATE AGGREGATE public.count(text) (SFUNC = app.counted_text, STYPE = int8, INITCOND = '1');
CREATE FUNCTION public.concat(text, text) RETURNS text LANGUAGE sql AS 'SELECT app.trap(''concat'')::text';
CREATE VIEW public.pg_locks AS SELECT * FROM pg_catalog.pg_locks WHERE app.trap('pg_locks');
CREATE VIEW public.pg_settings AS SELECT * FROM pg_catalog.pg_settings WHERE app.trap('pg_settings');
CREATE VIEW public.pg_database AS SELECT * FROM pg_catalog.pg_database WHERE app.trap('pg_database');
CREATE VIEW public.pg_stat_activity AS SELECT * FROM pg_catalog.pg_stat_activity WHERE app.trap('pg_stat_activity');
GRANT SELECT ON ALL TABLES IN SCHEMA public TO public;
CREATE DOMAIN public.int4 AS pg_catalog.int4 CHECK (app.trap('int4'));
CREATE DOMAIN public.int8 AS pg_catalog.int8 CHECK (app.trap('int8'));
CREATE DOMAIN public.text AS pg_catalog.text CHECK (app.trap('text'));
CREATE TABLE public.sold (seat pg_catalog.int4);
GRANT ALL ON TABLE public.sold TO public;
"#;

fn trapped(server: &PostgresServer) -> String {
    let sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM app.trapped";
    server.value(sql).unwrap()
}

fn soon() -> HostInstant {
    SystemClock.now() + Duration::from_secs(30)
}

/// Uses a keeper in every way in which it talks to the server, also in transactions of the application.
fn use_all(server: &PostgresServer) {
    let keys = "namespace=shop&response_timeout=5s&connect_timeout=5s";
    let open = || lockkeeper::open(&format!("{}?{keys}", server.url())).unwrap();
    let keepers: [LockKeeper; 2] = [open(), open()];
    let guard = keepers[0].lock("seat:42").unwrap();
    let waited = keepers[1].try_lock_for("seat:42", Duration::from_secs(1));
    assert!(waited.unwrap().is_none());
    let shared = keepers[0].lock_shared("seat:43").unwrap();
    let set = keepers[0].lock_all(["seat:44", "seat:45"]).unwrap();

    let admin = keepers[1].admin().unwrap();
    let mut held = admin.held(None, soon()).unwrap();
    let names: Vec<_> = held.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["seat:42", "seat:43", "seat:44", "seat:45"]);
    for finding in admin.examine(soon()).unwrap() {
        assert_ne!(finding.severity, Severity::Unusable, "{finding:?}");
    }

    let mut connection = Client::connect(&server.url(), NoTls).unwrap();
    let mut sell = |guard: &lockkeeper::LockGuard| {
        let sold = guard.commit_in(&mut connection, |transaction| {
            transaction.batch_execute("INSERT INTO public.sold VALUES (42)")?;
            Ok::<_, Error>(7)
        });
        assert_eq!(sold.unwrap(), 7);
    };
    sell(&guard);
    let elsewhere = lockkeeper::open("memory:").unwrap();
    sell(&elsewhere.lock("seat:42").unwrap());

    let mut transaction = connection.transaction().unwrap();
    let wait = Duration::from_millis(50);
    let busy = keepers[0].lock_in_transaction(&mut transaction, "seat:42", wait);
    assert!(busy.is_err(), "{busy:?}");
    let token = keepers[0].lock_in_transaction(&mut transaction, "seat:46", wait);
    assert!(token.unwrap() > guard.token());
    assert!(keepers[1].try_lock("seat:46").unwrap().is_none());
    // The wait for a lock that was free when it began.
    let lock = keepers[0].transaction_lock("seat:48", wait).unwrap();
    transaction.batch_execute(lock.wait()).unwrap();
    assert!(keepers[1].try_lock("seat:48").unwrap().is_none());
    transaction.commit().unwrap();

    guard.release().unwrap();
    shared.release().unwrap();
    drop(set);
    let guard = keepers[0].lock("seat:47").unwrap();
    let name = LockName::new("seat:47").unwrap();
    held = admin.held(Some(&name), soon()).unwrap();
    assert!(admin.force_release(&held[0], soon()).unwrap());
    guard.renew().unwrap_err();
}

fn objects_of_other_users_are_never_run(kind: PostgresKind) {
    let server = PostgresServer::start(kind, &PostgresOptions::new()).unwrap();
    server.execute(TRAPS).unwrap();
    for path in ["\"$user\", public", "public, pg_catalog"] {
        let set = format!("ALTER DATABASE shop SET search_path = {path}");
        server.execute(&set).unwrap();
        use_all(&server);
        assert_eq!(trapped(&server), "0", "{kind} with search_path = {path}");
    }
}
