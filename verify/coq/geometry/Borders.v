(** Lemma 2 at the border of the image: without padding tokens a head clamps, which is replicate padding.

    The paper's Lemma 2 needs the target q + τ_h to be a token.  Where it is not, softmax does not
    attend to nothing: it attends to the token nearest to the target.

    Statements, on the unpadded grid of the input:
      off_grid_leak       a head with any target leaks past the nearest token by at most the bounds of
                          Leakage.v: 1 − ϑ(α)^{−d}, 2 d e^{−α}
      border_replicates   so the construction without padding tends to the convolution with
                          padding_mode='replicate'
      border_not_zeros    but not to the one with zeros: wherever a tap reads off the input, there are
                          a kernel and an image on which the two differ by 1 *)

From Coquelicot Require Import Coquelicot.
From Coq Require Import Reals ZArith List Lra Lia Permutation.
From Attention Require Import Definitions Sums Softmax Lemma2 Factorisation Leakage Layers Theorem1 Geometry.
Import ListNotations.
Open Scope R_scope.

(** The token of the input grid that is nearest to the position t. *)
Fixpoint nearest (axes : list axis) (t : position) : position :=
  match axes, t with a :: axes', z :: t' => Z.max 0 (Z.min z (size a - 1)) :: nearest axes' t' | _, _ => [] end.

(** The query of output o as a position of the unpadded input: s·o + a − before. *)
Definition input_query (axes : list axis) (o : position) : position := sub (query axes o) (map before axes).

Lemma in_nearest axes t : Forall (fun a => 1 <= size a)%Z axes -> length t = length axes ->
  In (nearest axes t) (input_grid axes).
Proof.
  unfold input_grid; rewrite in_box_ranges; intros LA; revert t.
  induction LA as [|a axes La _ IH]; intros [|z t]; simpl; try lia; intros E; constructor; [lia|apply IH; lia].
Qed.

(** ‖k − t‖² ≥ ‖nearest − t‖² + ‖k − nearest‖² for every token k. *)
Lemma nearest_distance axes t k : length t = length axes -> In k (input_grid axes) ->
  (norm2 (sub (nearest axes t) t) + norm2 (sub k (nearest axes t)) <= norm2 (sub k t))%Z.
Proof.
  unfold input_grid; rewrite in_box_ranges; intros E A; revert t E.
  induction A as [|x a k axes Hx _ IH]; intros [|z t]; simpl length; try lia; intros E; [simpl; lia|].
  cbn [nearest sub norm2]; specialize (IH t ltac:(lia)).
  set (c := Z.max 0 (Z.min z (size a - 1))).
  assert (0 <= (x - c) * (c - z))%Z.
  { unfold c; destruct (Z.le_gt_cases z 0); [|destruct (Z.le_gt_cases (size a) z)].
    - replace (Z.max 0 (Z.min z (size a - 1))) with 0%Z by lia; nia.
    - replace (Z.max 0 (Z.min z (size a - 1))) with (size a - 1)%Z by lia.
      replace ((x - (size a - 1)) * (size a - 1 - z))%Z with ((size a - 1 - x) * (z - (size a - 1)))%Z by ring; nia.
    - replace (Z.max 0 (Z.min z (size a - 1))) with z by lia; nia. }
  replace ((x - z) * (x - z))%Z with ((c - z) * (c - z) + (x - c) * (x - c) + 2 * ((x - c) * (c - z)))%Z by ring; lia.
Qed.

Section Border.
Variables (axes : list axis) (d_in d_out : nat) (hs : list position) (f : position -> position).
Variables (W : position -> matrix) (b : vector) (h : position) (X : image) (q : position).
Hypotheses (sizes : Forall (fun a => 1 <= size a)%Z axes).
Hypotheses (q_d : length q = length axes) (h_d : length (f h) = length axes).

Let L α : layer position := construction (length axes) d_in d_out α hs f W b.

(** Away from the nearest token n the score falls by α‖k − n‖² or more. *)
Lemma score_below_nearest α k : 0 <= α -> In k (input_grid axes) ->
  score (L α) h X q k - score (L α) h X q (nearest axes (add q (f h))) <=
  - α * IZR (norm2 (sub k (nearest axes (add q (f h))))).
Proof.
  intros Hα Ik; assert (T : length (add q (f h)) = length axes) by (rewrite length_add; congruence).
  pose proof (in_nearest axes _ sizes T) as I.
  destruct (positions_ranges size axes) as [_ F]; rewrite Forall_forall in F; fold (input_grid axes) in F.
  unfold L; rewrite !score_construction by (try assumption; apply F; assumption).
  pose proof (IZR_le _ _ (nearest_distance axes _ k T Ik)) as D; rewrite plus_IZR in D; nra.
Qed.

(** The leak past the nearest token, wherever the target is. *)
Theorem off_grid_leak α : 0 < α ->
  let n := nearest axes (add q (f h)) in
  1 - attention (L α) (input_grid axes) h X q n <= 1 - / theta α ^ length axes /\
  1 - attention (L α) (input_grid axes) h X q n <= 2 * INR (length axes) * exp (- α).
Proof.
  intros Hα n; assert (I : In n (input_grid axes)) by (apply in_nearest; [exact sizes|]; rewrite length_add; congruence).
  assert (S : forall k, In k (input_grid axes) ->
    score (L α) h X q k - score (L α) h X q n <= - α * IZR (norm2 (sub k n))).
  { intros k Ik; apply score_below_nearest; [lra|exact Ik]. }
  split; [apply (quadratic_theta (length axes) _ (fun k => score (L α) h X q k))|
    apply (quadratic_closed (length axes) _ (fun k => score (L α) h X q k))];
    try assumption; apply positions_ranges.
Qed.

End Border.

Lemma length_read axes o j : length o = length axes -> length j = length axes -> length (read axes o j) = length axes.
Proof.
  revert o j; induction axes as [|a axes IH]; intros [|x o] [|y j]; simpl; try lia; intros E E'; rewrite IH; lia.
Qed.

(** Replicate padding reads the nearest token. *)
Lemma continued_replicate axes t : length t = length axes ->
  continued replicate axes t = Some (nearest axes (sub t (map before axes))).
Proof.
  revert t; induction axes as [|a axes IH]; intros [|z t]; simpl length; try lia; intros E; [reflexivity|].
  cbn [continued nearest sub map]; unfold continued_axis; rewrite IH by lia; reflexivity.
Qed.

Lemma input_query_shift axes o j : length o = length axes -> length j = length axes ->
  add (input_query axes o) (shift axes j) = sub (read axes o j) (map before axes).
Proof.
  unfold input_query; revert o j; induction axes as [|a axes IH]; intros [|x o] [|y j]; simpl length; try lia;
    intros E E'; [reflexivity|]; cbn [query shift read sub map add]; rewrite IH by lia; f_equal; lia.
Qed.

(** α → ∞: on the grid of the input itself the construction computes the convolution with replicate padding. *)
Theorem border_replicates axes g in_g out_g weight bias X o c : Forall (legal replicate) axes ->
  (0 < in_g)%nat -> (c < g * out_g)%nat -> In o (output_grid axes) ->
  is_lim (fun α => attend (conv_layer axes g in_g out_g weight bias α) (input_grid axes) X (input_query axes o) c)
    p_infty (torch_conv replicate axes in_g out_g weight bias X o c).
Proof.
  intros LA Hin Hc Io.
  assert (sizes : Forall (fun a => 1 <= size a)%Z axes).
  { apply (Forall_impl _ (P := legal replicate)); [intros a La; apply La|exact LA]. }
  assert (Lo : length o = length axes).
  { destruct (positions_ranges out_size axes) as [_ F]; rewrite Forall_forall in F; apply F, Io. }
  assert (Lj : forall j, In j (taps axes) -> length j = length axes).
  { destruct (positions_ranges kernel axes) as [_ F]; rewrite Forall_forall in F; exact F. }
  assert (Lq : length (input_query axes o) = length axes).
  { unfold input_query; rewrite length_sub; [apply length_query, Lo|]; rewrite map_length; apply length_query, Lo. }
  rewrite (geometry_conv replicate axes g) by assumption.
  set (t := fun j => nearest axes (add (input_query axes o) (shift axes j))).
  rewrite (sum_ext (taps axes) _ (fun j => row_times (g * in_g) (X (t j)) (block_diagonal in_g out_g weight j) c)).
  - apply (positional_limit (S (length axes)) (g * in_g) (g * out_g) r_quadratic (taps axes)
      (fun α j => v_quadratic α (shift axes j)) (block_diagonal in_g out_g weight) bias t); [exact Hc|apply positions_ranges| |].
    + intros j Ij; apply in_nearest; [exact sizes|]; rewrite length_add; [exact Lq|].
      rewrite length_shift by (apply Lj, Ij); exact Lq.
    + intros j Ij k Ik; pose proof (length_shift axes j (Lj j Ij)) as Ls.
      assert (It : In (t j) (input_grid axes)) by (apply in_nearest; [exact sizes|]; rewrite length_add; congruence).
      destruct (softmax_limit (input_grid axes) (fun α k =>
        score (conv_layer axes g in_g out_g weight bias α) j X (input_query axes o) k) (t j)) as [L1 L0];
        [apply positions_ranges|exact It| |].
      * intros α k' Hα Ik' D.
        apply (quadratic_gap (length axes) (input_grid axes)
          (fun k => score (conv_layer axes g in_g out_g weight bias α) j X (input_query axes o) k) (t j) α);
          try assumption; [apply positions_ranges| |lra].
        intros k'' Ik''; apply score_below_nearest; try assumption; lra.
      * destruct (position_eq_dec k (t j)) as [->|D]; [exact L1|apply L0; assumption].
  - intros j Ij; apply sum_ext; intros i _; unfold padded; rewrite query_shift, continued_replicate.
    + unfold t; rewrite input_query_shift by (try assumption; apply Lj, Ij); reflexivity.
    + apply length_read; [exact Lo|apply Lj, Ij].
Qed.

(** Zero padding is another function: wherever some tap j0 of some output o reads off the input, the kernel
    that is 1 at j0 and the image of ones give the bias with zeros and the bias + 1 with replicate. *)
Theorem border_not_zeros axes bias o j0 : Forall (legal zeros) axes -> In o (output_grid axes) -> In j0 (taps axes) ->
  continued zeros axes (read axes o j0) = None ->
  let weight := fun (_ _ : nat) j => if position_eq_dec j j0 then 1 else 0 in
  let ones : image := fun _ _ => 1 in
  torch_conv zeros axes 1 1 weight bias ones o 0 = bias O /\
  torch_conv replicate axes 1 1 weight bias ones o 0 = bias O + 1.
Proof.
  intros LA Io Ij off weight ones.
  assert (Lo : length o = length axes).
  { destruct (positions_ranges out_size axes) as [_ F]; rewrite Forall_forall in F; apply F, Io. }
  destruct (positions_ranges kernel axes) as [N F]; rewrite Forall_forall in F; fold (taps axes) in N, F.
  assert (S : forall m, torch_conv m axes 1 1 weight bias ones o 0 = bias O + padded m axes ones (read axes o j0) O).
  { intros m; unfold torch_conv; f_equal; rewrite (sum_single _ j0 _ N Ij).
    - unfold sum_below, sum, weight; simpl; destruct (position_eq_dec j0 j0); [ring|congruence].
    - intros j _ D; unfold sum_below, sum, weight; simpl; destruct (position_eq_dec j j0); [congruence|ring]. }
  rewrite !S; unfold padded; rewrite off, continued_replicate by (apply length_read; [exact Lo|apply F, Ij]).
  unfold ones; split; ring.
Qed.
