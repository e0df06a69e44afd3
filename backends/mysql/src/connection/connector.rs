//! Opens connections to the server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, process_label};
use lockkeeper_remote::{
    Endpoint, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, Server, Supplier, connect_any,
    nothing_granted, without_signals,
};
use lockkeeper_sessions::Sessions;
use mysql::{Conn, Opts, OptsBuilder};

use crate::connection::wire::{AnyConn, CallLimits, Wire};
use crate::connection::{Connection, Shared};
use crate::failure::not_connected;
use crate::options::{MySqlOptions, bracketed};

/// It is more than any request needs. Asking the server for its limit would cost a round trip.
const MOST_BYTES: usize = 16 << 20;

pub(crate) struct Connector {
    limit: Duration,
    supplier: Supplier<AnyConn>,
    pub(crate) shared: Arc<Shared>,
}

impl Connector {
    pub(crate) fn new(
        options: &MySqlOptions,
        sessions: &Arc<Sessions<Connection>>,
    ) -> Result<Self, Error> {
        let remote = &options.remote;
        let is_supplied = options.supplier.is_some();
        let link = sessions.link(remote, "MySQL", is_supplied);
        Ok(Self {
            limit: remote.connect_timeout,
            supplier: supplier(options, &link.server),
            shared: Arc::new(Shared {
                limits: CallLimits::new(&link.clock)?,
                link,
                run: Arc::default(),
                is_lent: remote.is_lent,
            }),
        })
    }

    /// Opens a connection that is logged in, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        if limit.is_zero() {
            return Err(self.shared.link.server.no_time_to_connect());
        }
        let until = Instant::now() + limit;
        self.prepare(self.supplier.take(limit)?, until)
    }

    /// Makes a connection ready for locks.
    fn prepare(&self, conn: AnyConn, until: Instant) -> Result<Connection, Error> {
        let wire = Wire::of(&conn)?;
        Connection::new(conn, wire, &self.shared, until).map_err(nothing_granted)
    }
}

/// Returns what makes connections: the application's function, or the mysql crate.
pub(crate) fn supplier(options: &MySqlOptions, server: &Server) -> Supplier<AnyConn> {
    if let Some(supplier) = &options.supplier {
        return supplier.clone();
    }
    let remote = &options.remote;
    #[cfg(feature = "tls")]
    if remote.tls {
        // It fails if the program has chosen its cryptography already.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let program = Some(("program_name", "lockkeeper"));
    let label = process_label().map(|label| ("label", label));
    let opts = OptsBuilder::from_opts(options.opts())
        .prefer_socket(false)
        .tcp_nodelay(true)
        .tcp_keepalive_time_ms(u32::try_from(KEEPALIVE_IDLE.as_millis()).ok())
        .max_allowed_packet(Some(MOST_BYTES))
        // The connection keeps its own list of statements, and the crate would close the oldest ones.
        .stmt_cache_size(0)
        .connect_attrs(Some(program.into_iter().chain(label).collect()));
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    let opts = opts
        .tcp_keepalive_probe_interval_secs(u32::try_from(KEEPALIVE_INTERVAL.as_secs()).ok())
        .tcp_keepalive_probe_count(Some(KEEPALIVE_PROBES));
    let dialer = Dialer {
        opts: opts.into(),
        endpoint: remote.endpoint.clone(),
        server: server.clone(),
    };
    // The crate has no bound for a login that comes in pieces. It gets a shorter limit, since its own errors
    // say more than a time-out.
    Supplier::of_server(server, move |limit| dialer.dial(limit - limit / 16))
}

/// Connects by the mysql crate.
struct Dialer {
    opts: Opts,
    endpoint: Endpoint,
    server: Server,
}

impl Dialer {
    fn dial(&self, limit: Duration) -> Result<AnyConn, Error> {
        let opts = || OptsBuilder::from_opts(self.opts.clone());
        match &self.endpoint {
            // The mysql crate tries the first address of a host only. With TLS it has to know the
            // host's name, and takes no address beside it.
            Endpoint::Tcp { host, port } if self.opts.get_ssl_opts().is_none() => connect_any(
                &self.server,
                (host.as_str(), *port),
                limit,
                |address, limit| {
                    let host = bracketed(&address.ip().to_string());
                    self.dial_to(opts().ip_or_hostname(Some(host)), limit)
                },
            ),
            _ => self.dial_to(opts(), limit),
        }
    }

    fn dial_to(&self, opts: OptsBuilder, left: Duration) -> Result<AnyConn, Error> {
        // The kernel takes zero for no limit.
        let left = left.max(Duration::from_millis(1));
        let opts = opts
            .tcp_connect_timeout(Some(left))
            .read_timeout(Some(left))
            .write_timeout(Some(left));
        let conn = without_signals(|| Conn::new(opts)).map_err(|error| {
            let tls = self.opts.get_ssl_opts().is_some();
            not_connected(error, &self.server, tls)
        })?;
        Ok(Box::new(Box::new(conn)))
    }
}
