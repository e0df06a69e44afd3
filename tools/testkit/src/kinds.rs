//! What the kinds of all servers have: a name for tests, and a program that is searched for.

/// Declares the kinds of a server, each with a name for tests and with what its output of `--version` contains. All cases
/// run on those in `all`.
///
/// The programs are tried in this order: those that the environment variables name, those that `scripts/servers` unpacked,
/// and those that are installed.
macro_rules! server_kinds {
    (
        $(#[$docs:meta])*
        $kind:ident { $($(#[$kind_docs:meta])* $variant:ident = $name:literal, $version:expr;)+ }
        all: [$($listed:ident),+]; $count:literal
        variables: $variables:expr;
        unpacked: $unpacked:expr;
        installed: $installed:expr;
    ) => {
        $(#[$docs])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $kind {
            $($(#[$kind_docs])* $variant,)+
        }

        impl $kind {
            /// The kinds that all cases run on.
            pub const ALL: [Self; $count] = [$(Self::$listed),+];

            /// Returns the name for tests, which ends with the version.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the program: the first of this kind among those that an environment variable names, those that
            /// `scripts/servers` unpacked, and those on PATH. Searched once per process.
            ///
            /// # Errors
            /// There is none: the text says what was found instead, and what to do.
            pub fn program(self) -> Result<std::path::PathBuf, String> {
                static FOUND: std::sync::OnceLock<crate::find::Found> = std::sync::OnceLock::new();
                let search = || crate::find::Found::search($variables, $unpacked, $installed);
                let found = FOUND.get_or_init(search);
                found.choose(self.name(), |version| self.matches(version))
            }

            /// Returns whether a program with this output of `--version` is of this kind. Its path does not matter, since one
            /// kind may be installed under the name of another.
            fn matches(self, version: &str) -> bool {
                let marks: &[&str] = match self {
                    $(Self::$variant => &$version,)+
                };
                marks.iter().all(|mark| version.contains(mark))
            }

            /// Returns why tests with this server are shown as ignored, `None` when they run. In continuous integration
            /// (`CI` is set) the tests of [`ALL`](Self::ALL) run, and fail where the server is missing.
            #[must_use]
            pub fn ignored(self) -> Option<String> {
                match Self::ALL.contains(&self) {
                    true => crate::find::ignored(|| self.program()),
                    false => self.program().err(),
                }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        #[cfg(feature = "suite")]
        impl crate::suite::ServerKind for $kind {
            fn all() -> &'static [Self] {
                &Self::ALL
            }

            fn ignored(self) -> Option<String> {
                self.ignored()
            }
        }
    };
}

pub(crate) use server_kinds;
