//! What is declared: all that is used, and what that is made of.

use std::collections::BTreeSet;

use syn::{FnArg, GenericArgument, PathArguments, ReturnType, Type};

use super::source::Source;

/// Names of what is declared.
#[derive(Default)]
pub struct Selection {
    /// With their fields.
    pub aggregates: BTreeSet<String>,
    /// Only pointed to: nobody looks inside.
    pub opaque: BTreeSet<String>,
    pub numbers: BTreeSet<String>,
    pub functions: BTreeSet<String>,
}

impl Selection {
    /// What follows from the identifiers that are `used`, without what is declared by hand.
    pub fn new(source: &Source, used: &BTreeSet<String>, by_hand: &[&str]) -> Self {
        let mut selection = Self::default();
        let is_used = |name: &String| used.contains(name) && !by_hand.contains(&name.as_str());
        for (name, function) in &source.functions {
            if is_used(name) {
                selection.functions.insert(name.clone());
                for input in &function.inputs {
                    if let FnArg::Typed(input) = input {
                        selection.needs(source, used, &input.ty, false);
                    }
                }
                if let ReturnType::Type(_, ty) = &function.output {
                    selection.needs(source, used, ty, false);
                }
            }
        }
        for name in source.aggregates.keys().filter(|name| is_used(name)) {
            selection.whole(source, used, name);
        }
        for name in source.numbers.keys().filter(|name| is_used(name)) {
            selection.numbers.insert(name.clone());
        }
        let Self {
            aggregates, opaque, ..
        } = &mut selection;
        opaque.retain(|name| !aggregates.contains(name) && !by_hand.contains(&name.as_str()));
        selection
    }

    fn whole(&mut self, source: &Source, used: &BTreeSet<String>, name: &str) {
        if !self.aggregates.insert(name.to_owned()) {
            return;
        }
        for field in &source.aggregates[name].fields {
            let field_used = field
                .ident
                .as_ref()
                .is_some_and(|ident| used.contains(&ident.to_string()));
            if function_of(&field.ty).is_none() || field_used {
                self.needs(source, used, &field.ty, false);
            }
        }
    }

    fn needs(&mut self, source: &Source, used: &BTreeSet<String>, ty: &Type, pointed_to: bool) {
        match ty {
            Type::Ptr(ty) => self.needs(source, used, &ty.elem, true),
            Type::Array(ty) => self.needs(source, used, &ty.elem, false),
            Type::BareFn(function) => {
                for input in &function.inputs {
                    self.needs(source, used, &input.ty, false);
                }
                if let ReturnType::Type(_, ty) = &function.output {
                    self.needs(source, used, ty, false);
                }
            }
            Type::Path(path) => {
                let segments: Vec<_> = path.path.segments.iter().collect();
                let Some(last) = segments.last() else { return };
                if let PathArguments::AngleBracketed(arguments) = &last.arguments {
                    for argument in &arguments.args {
                        if let GenericArgument::Type(ty) = argument {
                            self.needs(source, used, ty, pointed_to);
                        }
                    }
                }
                // `ibv_mtu::Type` is of the module `ibv_mtu`.
                let name = match (last.ident.to_string(), &segments[..]) {
                    (last, [.., module, _]) if last == "Type" => module.ident.to_string(),
                    (last, _) => last,
                };
                if source.numbers.contains_key(&name) {
                    self.numbers.insert(name);
                } else if source.aggregates.contains_key(&name) {
                    match pointed_to {
                        true => _ = self.opaque.insert(name),
                        false => self.whole(source, used, &name),
                    }
                }
            }
            _ => {}
        }
    }
}

/// The function that an `Option<unsafe extern "C" fn(…)>` points to.
pub fn function_of(ty: &Type) -> Option<&syn::TypeBareFn> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    match arguments.args.first()? {
        GenericArgument::Type(Type::BareFn(function)) if last.ident == "Option" => Some(function),
        _ => None,
    }
}
