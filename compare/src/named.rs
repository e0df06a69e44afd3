//! Enums with variants that users choose by name.

/// Defines an enum with a name and a description for each variant, both for users.
macro_rules! named_enum {
    (
        $(#[$meta:meta])*
        pub enum $enum:ident { $($variant:ident $name:literal: $description:literal,)+ }
    ) => {
        $(#[$meta])*
        pub enum $enum {
            $(#[doc = concat!($description, ".")] $variant,)+
        }

        impl $enum {
            /// All variants, in the order in which they run and are shown.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name, as users write it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Describes the variant in a few words.
            pub fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $description,)+
                }
            }
        }

        impl std::fmt::Display for $enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $enum {
            type Err = crate::error::Error;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.into_iter().find(|one| one.name() == name);
                found.ok_or_else(|| Self::Err::invalid(format!("unknown name {name:?}")))
            }
        }
    };
}
pub(crate) use named_enum;
