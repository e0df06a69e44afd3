//! `lockkeeper compare` on real MariaDB and MySQL servers, as its users see it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

#[cfg(unix)]
mod common;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    let args = Arguments::from_args();
    #[cfg(unix)]
    let trials = on_servers::trials();
    #[cfg(not(unix))]
    let trials = Vec::new();
    libtest_mimic::run(&args, trials).exit_code()
}

#[cfg(unix)]
mod on_servers {
    use libtest_mimic::{Completion, Trial};
    use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

    use crate::common::{compare, of, rows};

    /// What must show nowhere.
    const PASSWORD: &str = MySqlServer::PASSWORD;

    type Case = (&'static str, fn(MySqlKind));

    const CASES: &[Case] = &[
        ("five_of_a_hundred_get_in", five_of_a_hundred_get_in),
        (
            "every_scenario_is_as_it_must_be",
            every_scenario_is_as_it_must_be,
        ),
        ("every_door_leads_there", every_door_leads_there),
        ("no_secret_is_shown", no_secret_is_shown),
    ];

    pub(super) fn trials() -> Vec<Trial> {
        let mut trials = Vec::new();
        for kind in MySqlKind::ALL {
            for &(name, case) in CASES {
                trials.push(Trial::ignorable_test(
                    format!("{name}::{kind}"),
                    move || {
                        if let Some(why) = kind.ignored() {
                            return Ok(Completion::ignored_with(why));
                        }
                        case(kind);
                        Ok(Completion::Completed)
                    },
                ));
            }
        }
        trials
    }

    fn start(kind: MySqlKind, options: MySqlOptions) -> MySqlServer {
        // As many as there are threads that each take one, which some ways of locking do.
        MySqlServer::start(kind, &options.config("max-connections", "300")).unwrap()
    }

    /// Neither tables nor connections.
    #[track_caller]
    fn nothing_stays(server: &MySqlServer) {
        let tables = format!("SHOW TABLES FROM {}", MySqlServer::DATABASE);
        assert_eq!(server.value(&tables).unwrap(), None);
        assert_eq!(server.sessions().unwrap(), []);
    }

    fn five_of_a_hundred_get_in(kind: MySqlKind) {
        let server = start(kind, MySqlOptions::new());
        let rows = rows(&["--scenario=gather", "--url", &server.url()], PASSWORD);
        let (control, ours) = (of(&rows, "none"), of(&rows, "lockkeeper"));
        assert!(control["admitted"].as_u64() > Some(5), "{control:#}");
        assert_eq!(ours["admitted"], 5, "{ours:#}");
        assert_eq!(ours["turned_away"], 95, "{ours:#}");
        assert_eq!(ours["verdict"], "right", "{ours:#}");
        nothing_stays(&server);
    }

    fn every_scenario_is_as_it_must_be(kind: MySqlKind) {
        let server = start(kind, MySqlOptions::new());
        for row in rows(&["--threads=20", "--url", &server.url()], PASSWORD) {
            assert_eq!(row["verdict"], row["expected"], "{row:#}");
        }
        nothing_stays(&server);
    }

    fn every_door_leads_there(kind: MySqlKind) {
        let server = start(kind, MySqlOptions::new().tls());
        let authority = server.certificates().unwrap().authority.clone();
        let (user, database) = (MySqlServer::USER, MySqlServer::DATABASE);
        let login = format!("user={user}&password={PASSWORD}&db={database}");
        let urls = [
            server.url().replacen("mysql:", "mariadb:", 1),
            format!("mysql://{}?{login}", server.addr()),
            format!("mysql:?socket={}&{login}", server.socket().display()),
            format!("{}?tls=on&ca_file={}", server.url(), authority.display()),
        ];
        for url in urls {
            let rows = rows(
                &["--scenario=gather", "--threads=10", "--url", &url],
                PASSWORD,
            );
            let ours = of(&rows, "lockkeeper");
            assert_eq!(ours["admitted"], 5, "{ours:#}");
            nothing_stays(&server);
        }
    }

    fn no_secret_is_shown(kind: MySqlKind) {
        let secret = "swordfish-4711";
        let server = start(kind, MySqlOptions::new());
        let addr = server.addr();
        for (url, code) in [
            (format!("mysql://me:{secret}@{addr}"), 1),
            (format!("mysql://{addr}?user=me&password={secret}"), 1),
            (format!("mysql://me:{secret}@{addr}?tlt=5s"), 2),
            (format!("mysql://me:{secret}@[::1/"), 2),
        ] {
            let output = compare(&["--url", &url], secret);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
        }
    }
}
