(** The checker's parabola: on inputs up to the stated sizes its radix tells all shifts from a query to a key apart.

    Statements:
      coded_sub        the code of a difference is the difference of the codes
      tokens_distinct  if [numbered] accepts, then for inputs of every size that torch and the layer take, distinct tokens
                       have distinct codes: with the quadratic encoding always *)

From Coq Require Import Reals ZArith List Bool Lia.
From Attention Require Import Definitions Sums Lemma2 Geometry Transposed CheckFields.
Import ListNotations.
Open Scope Z_scope.

(** * What is computed *)

(** The most by which two shifts from a query to a key of one axis differ, if both lie in the least interval around 0 that
    holds all of them; a token from a token by no more. *)
Definition width (tokens first last : Z) : Z := Z.max (tokens - 1) (2 * Z.max last (tokens - 1 - first)).
Definition widths (g : geometry) (sizes : list Z) : list Z :=
  if transposed g
  then map (fun a : taxis => width (transposed_size a + span a) (anchor a) (transposed_size a - 1 + anchor a))
    (taxes g sizes)
  else map (fun a => width (size a + before a + after a) (anchor a) (stride a * (out_size a - 1) + anchor a))
    (axes g sizes).

(** Each axis counts more than all later ones together can. *)
Fixpoint distinct (radix widths : list Z) : bool :=
  match radix, widths with
  | [], [] => true
  | n :: radix', _ :: widths' => (dotZ radix' widths' <? n) && distinct radix' widths'
  | _, _ => false
  end.

Definition numbered (m : attention_layer) : bool :=
  match a_encoding m with quadratic => true | parabola radix largest => distinct radix (widths m largest) end.

(** * Codes *)

Lemma dotZ_sub n p q : length p = length q -> dotZ n (sub p q) = dotZ n p - dotZ n q.
Proof.
  revert p q; induction n as [|a n IH]; intros [|x p] [|y q]; simpl; try lia; intros E; rewrite IH by lia; ring.
Qed.

Lemma coded_sub e p q : length p = length q -> coded e (sub p q) = sub (coded e p) (coded e q).
Proof. intros E; destruct e; [reflexivity|]; simpl; rewrite dotZ_sub by exact E; reflexivity. Qed.

Lemma dotZ_add n p q : length p = length q -> dotZ n (add p q) = dotZ n p + dotZ n q.
Proof.
  revert p q; induction n as [|a n IH]; intros [|x p] [|y q]; simpl; try lia; intros E; rewrite IH by lia; ring.
Qed.

Lemma coded_add e p q : length p = length q -> coded e (add p q) = add (coded e p) (coded e q).
Proof. intros E; destruct e; [reflexivity|]; simpl; rewrite dotZ_add by exact E; reflexivity. Qed.

Lemma length_coded e p d : length p = d -> length (coded e p) = code_dims e d.
Proof. destruct e; [trivial|reflexivity]. Qed.

Lemma NoDup_codes {A B} (f : A -> B) l : NoDup l -> (forall x y, In x l -> In y l -> f x = f y -> x = y) ->
  NoDup (map f l).
Proof.
  induction 1 as [|a l Na _ IH]; intros E; constructor; [|apply IH; intros; apply E; simpl; auto].
  intros I; apply in_map_iff in I; destruct I as (x & Ex & Ix); apply Na.
  rewrite <- (E x a); simpl; auto.
Qed.

Lemma distinct_nonzero radix ws e : distinct radix ws = true -> Forall2 (fun x w => Z.abs x <= w) e ws ->
  Z.abs (dotZ radix e) <= dotZ radix ws /\ (dotZ radix e = 0 -> Forall (fun x => x = 0) e).
Proof.
  revert ws e; induction radix as [|n radix IH]; intros [|w ws] e D F; inversion F; subst; simpl in D; try discriminate;
    [simpl; split; [lia|constructor]|].
  apply andb_prop in D; destruct D as [L D]; apply Z.ltb_lt in L.
  destruct (IH _ _ D ltac:(eassumption)) as [B N]; cbn [dotZ]; split; [nia|intros E].
  assert (x = 0) by nia; subst x; constructor; [reflexivity|]; apply N; lia.
Qed.

(** * Sizes *)

(** The same axis for an input that is no smaller. *)
Definition grows (a b : axis) : Prop := kernel a = kernel b /\ stride a = stride b /\ dilation a = dilation b /\
  before a = before b /\ after a = after b /\ size a <= size b.

Lemma axes_grow g sizes largest : at_most sizes largest = true -> Forall2 grows (axes g sizes) (axes g largest).
Proof.
  unfold axes, axes_of; generalize (pads (padding_of g) (kernel_size g) (dilation_of g)); generalize (kernel_size g),
    (stride_of g), (dilation_of g).
  revert largest; induction sizes as [|n sizes IH]; intros [|l largest] ks ss ds ps E; simpl in E; try discriminate;
    destruct ks as [|k ks], ss as [|s ss], ds as [|d ds], ps as [|[p p'] ps]; simpl; try constructor.
  - apply andb_prop in E; destruct E as [E _]; apply Z.leb_le in E; repeat split; exact E.
  - apply IH; apply andb_prop in E; apply E.
Qed.

Lemma taxes_grow g sizes largest : at_most sizes largest = true ->
  Forall2 (fun a b : taxis => grows a b /\ output_padding a = output_padding b) (taxes g sizes) (taxes g largest).
Proof.
  intros E; apply (axes_grow g) in E; unfold taxes; revert E; generalize (output_paddings g); intros e F; revert e.
  induction F; intros [|p e]; simpl; constructor; [split; [assumption|reflexivity]|apply IHF].
Qed.

(** Two tokens differ by no more than that. *)
Lemma tokens_near {A} (P : A -> A -> Prop) (R : A -> Prop) count wide (as_ bs : list A) k t : Forall2 P as_ bs ->
  Forall R as_ -> (forall a b, R a -> P a b -> count a - 1 <= wide b) ->
  Forall2 (fun x a => 0 <= x < count a) k as_ -> Forall2 (fun x a => 0 <= x < count a) t as_ ->
  Forall2 (fun x w => Z.abs x <= w) (sub k t) (map wide bs).
Proof.
  intros F; revert k t; induction F as [|a b as_ bs Hab F IH]; intros k t FR C Fk Ft; inversion Fk; inversion Ft; subst;
    [constructor|]; inversion FR; subst; simpl; constructor; [|apply IH; assumption].
  assert (W := C a b ltac:(assumption) Hab); lia.
Qed.

Theorem tokens_distinct m sizes k t : numbered m = true -> accepts m sizes -> fits m sizes = true ->
  In k (tokens m sizes) -> In t (tokens m sizes) -> k <> t -> 1 <= norm2 (coded (a_encoding m) (sub k t)).
Proof.
  intros N [_ A] S Ik It D; destruct (positions_tokens m sizes) as [_ P]; rewrite Forall_forall in P.
  assert (L : length k = length t) by (rewrite (P k Ik), (P t It); reflexivity).
  unfold numbered, fits in *; destruct (a_encoding m) as [|radix largest]; cbn [coded];
    [apply norm2_sub_positive; [exact L|exact D]|].
  assert (F : Forall2 (fun x w => Z.abs x <= w) (sub k t) (widths m largest)).
  { unfold tokens, widths in *; destruct (transposed m).
    - apply (tokens_near _ _ (fun a : taxis => transposed_size a + span a) _ _ _ k t (taxes_grow m _ _ S) A);
        try (apply in_box_transposed; assumption).
      intros a b (_ & Ps & _) [(Ek & Es & Ed & Eb & Ea & En) E]; unfold width, transposed_size, span.
      rewrite <- Ek, <- Es, <- Ed, <- Eb, <- Ea, <- E; nia.
    - apply (tokens_near _ _ (fun a => size a + before a + after a) _ _ _ k t (axes_grow m _ _ S) A);
        try (apply in_box_ranges; assumption).
      intros a b _ (_ & _ & _ & Eb & Ea & En); unfold width; lia. }
  destruct (distinct_nonzero radix _ _ N F) as [_ Z]; cbn [norm2].
  assert (dotZ radix (sub k t) <> 0) by (intros E; apply D, zeros_equal; [exact L|apply Z, E]); nia.
Qed.
