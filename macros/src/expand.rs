//! The function with the lock around its body.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::Visit;
use syn::{
    AttrStyle, Attribute, Error, FnArg, Ident, ItemFn, Pat, Result, ReturnType, TraitItemFn,
    TypeImplTrait,
};

use crate::arguments::{Arguments, Mode};
use crate::time::Time;

/// Reads the function that the attribute is on.
pub(crate) fn parse(item: proc_macro::TokenStream) -> Result<ItemFn> {
    syn::parse(item.clone()).map_err(|error| match syn::parse::<TraitItemFn>(item) {
        Ok(method) => {
            let text = "`#[locked]` needs a body to run under the lock; put the attribute on the method of each implementation";
            Error::new(method.sig.ident.span(), text)
        }
        Err(_) => error,
    })
}

pub(crate) fn expand(arguments: &Arguments, mut function: ItemFn) -> Result<TokenStream> {
    check(&function)?;
    let acquired = acquire(arguments, &function);
    let moved = move_in(&mut function);
    let seen = arguments.guard.as_ref().map(|guard| {
        quote_spanned!(guard.span() => let #guard: &::lockkeeper::LockGuard = &__lockkeeper_guard;)
    });
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = function;
    let output = output(&sig.output);
    // The statements are used without the body's braces. With them, the compiler would warn of a body with a
    // single expression.
    let body = block.stmts;
    let is_inner = |attr: &Attribute| matches!(attr.style, AttrStyle::Inner(_));
    let (inner, outer): (Vec<_>, Vec<_>) = attrs.into_iter().partition(is_inner);
    Ok(quote! {
        #(#outer)* #vis #sig {
            #(#inner)*
            // The keeper may be a reference already.
            #[allow(clippy::needless_borrow)]
            let __lockkeeper_guard = #acquired;
            // Temporaries of the body's last expression are dropped at the end of this statement, before the
            // lock is released.
            let __lockkeeper_result #output = {
                #moved
                #seen
                #(#body)*
            };
            // The body may never reach its end.
            #[allow(unreachable_code, clippy::needless_return)]
            return __lockkeeper_result;
        }
    })
}

fn check(function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    if let Some(token) = &sig.asyncness {
        let text = "`#[locked]` would block the thread of an async task while it waits; put the attribute on a plain function, and call that in `spawn_blocking`";
        return Err(Error::new(token.span(), text));
    }
    if let Some(token) = &sig.constness {
        return Err(Error::new(
            token.span(),
            "a const function cannot wait for a lock",
        ));
    }
    if let ReturnType::Default = sig.output {
        let text = "`#[locked]` needs a function that returns a `Result`, since the lock may not be acquired";
        return Err(Error::new(sig.ident.span(), text));
    }
    Ok(())
}

/// Returns the type of the body's value. The last expression may have to be coerced to it, such as to a box of a
/// trait object. `None` if it is opaque, which the type of a variable cannot be.
fn output(output: &ReturnType) -> Option<TokenStream> {
    let ReturnType::Type(_, output) = output else {
        return None;
    };
    let mut search = FindOpaque(false);
    search.visit_type(output);
    (!search.0).then(|| quote!(: #output))
}

/// Whether a type has an `impl Trait` in it.
struct FindOpaque(bool);

impl Visit<'_> for FindOpaque {
    fn visit_type_impl_trait(&mut self, _: &TypeImplTrait) {
        self.0 = true;
    }
}

/// Returns the expression that acquires the lock, or returns its error.
fn acquire(arguments: &Arguments, function: &ItemFn) -> TokenStream {
    let Arguments {
        name,
        values,
        keeper,
        ..
    } = arguments;
    let name = match values.is_empty() && !name.value().contains(['{', '}']) {
        true => quote!(#name),
        false => quote_spanned!(name.span() => ::std::format!(#name #(, #values)*)),
    };
    let mode = match &arguments.mode {
        Mode::Exclusive => None,
        Mode::Shared => Some(quote!(::lockkeeper::Mode::Shared)),
        Mode::Permits(limit) => Some(quote!(::lockkeeper::Mode::Permit { limit: #limit })),
    };
    let mode = mode.map(|mode| quote!(.mode(#mode)));
    let wait = arguments.wait.as_ref().map(|wait| match wait {
        Time::Forever => quote!(.wait_forever()),
        Time::Duration(wait) => quote!(.wait(#wait)),
    });
    let ttl = arguments.ttl.as_ref().map(|ttl| match ttl {
        Time::Duration(ttl) => quote!(.lease(::lockkeeper::LeasePolicy::Renewed { ttl: #ttl })),
        Time::Forever => TokenStream::new(),
    });
    let guard = quote_spanned! { keeper.span() =>
        ::lockkeeper::LockKeeper::lock_with(
            &#keeper,
            #name,
            &::lockkeeper::AcquireOptions::new() #mode #wait #ttl,
        )
    };
    // With this span, the compiler reports a return type that is no `Result`, or whose error has no
    // `From<Error>`, at that type.
    quote_spanned!(function.sig.output.span() => #guard?)
}

/// Moves the arguments into the body, so that they are dropped before the lock is released.
fn move_in(function: &mut ItemFn) -> TokenStream {
    let mut moved = TokenStream::new();
    for input in &mut function.sig.inputs {
        let FnArg::Typed(input) = input else {
            continue;
        };
        if let Pat::Ident(pattern) = &mut *input.pat
            && pattern.by_ref.is_none()
            && pattern.subpat.is_none()
        {
            let name: &Ident = &pattern.ident;
            let mutability = pattern.mutability.take();
            let conditions = input.attrs.iter().filter(|it| it.path().is_ident("cfg"));
            // The lock's name may be the only use of an argument.
            moved.extend(quote! {
                #(#conditions)*
                #[allow(unused_variables)]
                let #mutability #name = #name;
            });
        }
    }
    moved
}
